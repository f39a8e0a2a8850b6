"""Gradients with NaN or infinity are left out and counted, and three in a row end the job; flipped bits are found."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.config import Config
from psnode.errors import DivergedError, PsnodeError
from psnode.jobs.job import run
from psnode.records.history import violations
from psnode.records.metrics import read_records
from psnode.tasks.classification import Classification


class Poisoned(Classification):
    """A task on digits in which the first layer of worker 2 gets a NaN gradient in the backward passes `when`, with a finite
    loss.
    """

    def __init__(self, *when: int) -> None:
        super().__init__("LeNet", "digits", seed=1)
        self.when, self.count = when, 0

    def loss(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        loss, outputs = super().loss(model, batch)
        if threading.current_thread().name == "worker-2":
            first = next(model.parameters())
            loss = loss + _Nan.apply(first, self._is_due)  # type: ignore[no-untyped-call]
        return loss, outputs

    def _is_due(self) -> bool:
        self.count += 1
        return self.count in self.when


class _Nan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, due: Callable[[], bool]) -> torch.Tensor:
        ctx.save_for_backward(weight)
        ctx.due = due
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.full_like(ctx.saved_tensors[0], float("nan") if ctx.due() else 0.0), None


def config(train_dir: Path, **changed: Any) -> Config:
    settings = {"scheme": "qsgd", "feedback": "ef", "batch_size": 8, "max_steps": 10, "eval_freq": 0, "local": 3, "lr": 0.02}
    settings |= {"threads": 1, "tensorboard": False, "group_by": "layer", "record_history": True, "hash_every": 1}
    return Config(train_dir=train_dir, **{**settings, **changed})


def events(train_dir: Path) -> list[tuple[str, int | None]]:
    return [(event["event"], event["rank"]) for event in read_records(train_dir / "events.jsonl")]


def test_a_round_goes_on_without_a_gradient_that_is_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config(tmp_path), Poisoned(3, 4, 7)) == 0
    assert "3 of 10 updates lack the gradient of one or more of 3 workers" in capsys.readouterr().err.splitlines()[-1]
    assert events(tmp_path) == [("skipped", 2)] * 3
    assert [record["dropped"] for record in read_records(tmp_path / "metrics.jsonl")] == [0, 0, 1, 1, 0, 0, 1, 0, 0, 0]
    lines = [line for line in read_records(tmp_path / "history.jsonl") if "groups" in line]
    everybody = [1, 2, 3]
    for line in lines:
        ranks = [[rank for rank, _, _ in group] for group in line["groups"]]
        if line["step"] in (3, 4, 7):
            assert [1, 3] in ranks  # the first layer's group, and the groups after it
            assert all(group in ([1, 3], everybody) for group in ranks)
        else:
            assert all(group == everybody for group in ranks)
    assert violations(tmp_path) == []
    assert all(np.isfinite(record["loss"]) for record in read_records(tmp_path / "metrics.jsonl"))


def test_three_in_a_row_end_the_job_with_4(tmp_path: Path) -> None:
    with pytest.raises(PsnodeError, match=r"rank 2: gradient is nan") as caught:
        run(config(tmp_path), Poisoned(4, 5, 6))
    assert caught.value.exit_code == DivergedError.exit_code
    assert json.loads((tmp_path / "summary.json").read_bytes())["stop_reason"] == "diverged"
    assert events(tmp_path)[:2] == [("skipped", 2)] * 2


def test_a_lonely_worker_that_skips_leaves_the_weights_as_they_are(tmp_path: Path) -> None:
    """Check that a skipped step of the only worker leaves the weights unchanged: the optimizer is not called, so momentum
    does not move them either.
    """

    class Lonely(Poisoned):
        def loss(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
            threading.current_thread().name = "worker-2"
            return super().loss(model, batch)

    # one group, so nothing is sent before the NaN is seen; the first pass measures the order of gradients, so pass 5 is step 4
    assert run(config(tmp_path, local=1, group_by="model"), Lonely(5)) == 0
    hashes = [line["hash"] for line in read_records(tmp_path / "history.jsonl") if "groups" in line]
    assert [a == b for a, b in itertools.pairwise(hashes)] == [version == 3 for version in range(1, 10)]


class Flipped(Classification):
    """A task on digits in which the lowest bit of one of worker 2's weights flips in its fifth step."""

    def __init__(self) -> None:
        super().__init__("LeNet", "digits", seed=1)
        self.count = 0

    def loss(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if threading.current_thread().name == "worker-2":
            self.count += 1
            if self.count == 5:
                weights = list(model.parameters())[2].detach().view(-1).numpy().view(np.uint32)
                weights[17] ^= 1
        return super().loss(model, batch)


def test_a_flipped_bit_in_a_workers_weights_is_found_and_its_rank_named(tmp_path: Path) -> None:
    """Check that a flipped bit is found and its rank named. One of 431 080 weights differs in its last bit, which changes on
    the downlink never repair.
    """
    with pytest.raises(DivergedError, match=r"rank 2 computed step 7 .* version 6") as caught:
        run(config(tmp_path, hash_every=3, downlink="bf16", max_steps=12), Flipped())
    assert caught.value.exit_code == 4
    assert json.loads((tmp_path / "summary.json").read_bytes())["stop_reason"] == "diverged"
