"""Clipping to the median norm: factors compared with brute force, applied sums with NumPy, and messages to workers."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError
from psnode.exchange.shard.median_clipping import factors
from psnode.jobs.job import run
from psnode.records import checkpoint
from psnode.task import Task

LR = 0.5
CLIP = "mean:clip=median"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_at_least_half_of_the_pushes_are_added_whole_and_none_is_longer_than_an_honest_one(count: int) -> None:
    """Check that half of the pushes, rounded up, are added unscaled, and that no push is added with a norm above that of the
    longest honest one. Norms are 1, 2, ... in all orders; liars, fewer than half, multiply the largest by 1e30.
    """
    for norms in itertools.permutations([float(number) for number in range(1, count + 1)]):
        honest = count - (count - 1) // 2
        told = [norm if norm <= honest else norm * 1e30 for norm in norms]
        found = [norm * factor for norm, factor in zip(told, factors(told), strict=True)]
        assert sum(factor == 1 for factor in factors(told)) == (count + 1) // 2
        assert max(found) <= honest * (1 + 1e-6)
        assert all(factor == np.float32(factor) and 0 <= factor <= 1 for factor in factors(told))


def test_where_most_push_nothing_nothing_is_added() -> None:
    assert factors([0.0, 5.0, 0.0]) == [1.0, 0.0, 1.0]
    assert factors([]) == []


class Numbers:
    """Four examples, each of which is its own index."""

    def __len__(self) -> int:
        return 4

    def batch(self, indices: np.ndarray, rng: np.random.Generator | None) -> torch.Tensor:
        return torch.from_numpy(indices)


class Pull(Task):
    """A task with loss = <weights, G_i> for example i. G_3 is a liar's gradient: 100 times too long, in the opposite
    direction.
    """

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(3)
        lengths = np.float32([1.0, 1.5, 2.0, -150.0])[:, None, None]
        self.matrices = rng.standard_normal((4, 40, 40)).astype(np.float32) * lengths
        self.biases = rng.standard_normal((4, 1, 7)).astype(np.float32) * lengths

    def model(self) -> torch.nn.Module:
        return torch.nn.ParameterDict({"matrix": torch.zeros(40, 40), "bias": torch.zeros(7)})

    def train_data(self) -> Numbers:
        return Numbers()

    def eval_data(self) -> Numbers:
        return Numbers()

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, None]:
        weights = dict(model.named_parameters())
        matrix, bias = torch.from_numpy(self.matrices)[batch].mean(0), torch.from_numpy(self.biases)[batch].mean(0)[0]
        return (matrix * weights["matrix"]).sum() + (bias * weights["bias"]).sum(), None

    def size(self, batch: torch.Tensor) -> int:
        return len(batch)


def config(folder: Path, **changed: Any) -> Config:
    settings: dict[str, Any] = {"scheme": "dense", "momentum": 0.0, "lr": LR, "downlink": "dense", "batch_size": 1, "local": 4}
    settings |= {
        "threads": 1,
        "tensorboard": False,
        "eval_freq": 1,
        "keep_last": 0,
        "log_interval": 1000,
        "max_steps": 1,
        "aggregator": CLIP,
        "norm_cap": 0.0,
    }
    return Config(train_dir=folder, **{**settings, **changed})


def saved(folder: Path) -> checkpoint.Checkpoint:
    newest = checkpoint.latest(folder)
    assert newest is not None
    return checkpoint.Checkpoint.open(newest)


def model_hash(folder: Path) -> str:
    return str(json.loads((folder / "summary.json").read_bytes())["model_hash"])


@pytest.mark.parametrize("feedback", ["none", "ef"])
def test_what_is_applied_is_the_mean_of_the_clipped_gradients_and_the_rest_is_remembered(tmp_path: Path, feedback: str) -> None:
    task = Pull()
    run(config(tmp_path, feedback=feedback), task)
    gradients = np.concatenate([task.biases.reshape(4, -1), task.matrices.reshape(4, -1)], axis=1).astype(np.float64)
    norms = np.linalg.norm(gradients, axis=1)
    scales = np.minimum(1, np.sort(norms)[1] / norms)
    assert (scales < 1).sum() == 2
    weights = saved(tmp_path).tensors(checkpoint.MODEL)
    moved = np.concatenate([weights["bias"].numpy(), weights["matrix"].numpy().reshape(-1)])
    np.testing.assert_allclose(moved, -LR * (scales[:, None] * gradients).mean(0), rtol=1e-4, atol=1e-5)
    owed = np.zeros(2)
    for rank in range(1, 5):
        tensors = saved(tmp_path).tensors(checkpoint.worker_file(rank))
        kept = [value.numpy() for name, value in sorted(tensors.items()) if name.startswith("feedback/residual/")]
        owed += [
            sum(np.sum(value, dtype=np.float64) for value in kept),
            sum(np.sum(value**2, dtype=np.float64) for value in kept),
        ]
    rest = (1 - scales)[:, None] * gradients if feedback == "ef" else np.zeros((1, 1))
    np.testing.assert_allclose(owed, [rest.sum(), (rest**2).sum()], rtol=1e-4, atol=1e-4)


def test_a_clipped_run_is_the_same_to_the_bit_whoever_comes_first_and_where_it_is_resumed(tmp_path: Path) -> None:
    settings = {"scheme": "topk", "feedback": "ef", "momentum": 0.9, "downlink": "topk:ratio=0.1+fp16", "group_by": "layer"}
    run(config(tmp_path / "whole", max_steps=6, **settings), Pull())
    run(config(tmp_path / "parts", max_steps=3, **settings), Pull())
    run(config(tmp_path / "parts", max_steps=6, resume=True, **settings), Pull())
    assert model_hash(tmp_path / "parts") == model_hash(tmp_path / "whole")
    assert checkpoint_files(tmp_path / "parts") == checkpoint_files(tmp_path / "whole")


def checkpoint_files(folder: Path) -> dict[str, str]:
    return {name: entry["xxh3_128"] for name, entry in saved(folder).facts["files"].items()}


def test_it_is_refused_where_pushes_are_not_there_to_be_compared() -> None:
    for changed, told in (
        ({"scheme": "countmean"}, "added up undecoded"),
        ({"scheme": "countsketch", "feedback": "none"}, "added up undecoded"),
        ({"consistency": "asp"}, "a round may be of one"),
        ({"consistency": "ssp"}, "a round may be of one"),
        ({"consistency": "kofn", "num_aggregate": 1}, "a round may be of one"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            resolve(Config(aggregator=CLIP, **{"scheme": "topk", **changed}))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"one of mean, majority, mean:clip=median, not 'majority:clip=median'"):
        Config(aggregator="majority:clip=median")
    assert resolve(Config(scheme="countsketch", aggregator=CLIP)).clips
