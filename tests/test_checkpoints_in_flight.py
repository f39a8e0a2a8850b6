"""Runs that write checkpoints while later steps run."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import psnode
from psnode.config import Config
from psnode.master.checkpoints.contents import Draft
from psnode.records import checkpoint
from psnode.records.checkpoint import Checkpoint
from psnode.records.metrics import read_records
from psnode.records.snapshots.snapshot import Raw, Snapshot
from psnode.tasks.classification import Classification
from psnode.worker.checkpoint_part import CheckpointParts

pytestmark = pytest.mark.serial


class Noted(Classification):
    """A task that counts the backward passes in `steps`; pass 0 measures the order of gradients."""

    def __init__(self) -> None:
        super().__init__("LeNet", "digits", seed=1)
        self.steps = -1
        self.passed = threading.Condition()

    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        loss, outputs = super().loss(model, batch)
        if loss.requires_grad:
            loss.register_hook(self._note)  # type: ignore[no-untyped-call]
        return loss, outputs

    def _note(self, gradient: torch.Tensor) -> None:
        with self.passed:
            self.steps += 1
            self.passed.notify_all()


def config(train_dir: Path, **changed: Any) -> Config:
    settings = {
        "scheme": "topk:ratio=0.05",
        "feedback": "ef",
        "batch_size": 8,
        "max_steps": 8,
        "eval_freq": 2,
        "local": 1,
        "lr": 0.005,
    }
    settings |= {"threads": 1, "tensorboard": False, "keep_last": 0, "optimizer": "adamw", "quiet": True}
    return Config(train_dir=train_dir, **{**settings, **changed})


def digests(train_dir: Path) -> dict[int, Any]:
    """Verify all checkpoints, and return their files with sizes and hashes, by step."""
    found = {}
    for path in checkpoint.complete(train_dir):
        opened = Checkpoint.open(path)
        opened.verify()
        found[opened.step] = opened.facts["files"]
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """Return checkpoints that were written without later changes: each belongs to the last version of a run
    or of a part of it.
    """
    train_dir = tmp_path_factory.mktemp("undisturbed")
    for last in (2, 4, 6, 8):
        assert psnode.run(Noted(), config(train_dir, max_steps=last, eval_freq=0, resume=last > 2)) == 0
    return digests(train_dir)


@pytest.mark.parametrize("memory", [0, 1, 20_000])
def test_every_checkpoint_holds_its_version_whatever_room_there_is_for_copies(
    tmp_path: Path, undisturbed: dict[int, Any], memory: int
) -> None:
    assert psnode.run(Noted(), config(tmp_path, checkpoint_memory=memory)) == 0
    assert digests(tmp_path) == undisturbed


def test_steps_go_on_while_a_checkpoint_is_written_and_it_holds_its_version(
    tmp_path: Path, undisturbed: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that steps continue while a checkpoint is written, and that it holds its version. The writers of version 4 wait
    until step 6 is being computed. Only versions 4 and 8 have checkpoints here.
    """
    task, own = Noted(), Snapshot.read

    def read(self: Snapshot, tensor: torch.Tensor, start: int, out: Raw) -> None:
        with task.passed:
            assert task.passed.wait_for(lambda: task.steps >= 6, timeout=300)
        own(self, tensor, start, out)

    monkeypatch.setattr(Snapshot, "read", read)
    assert psnode.run(task, config(tmp_path, eval_freq=4)) == 0
    assert digests(tmp_path) == {step: files for step, files in undisturbed.items() if step in (4, 8)}


def test_one_that_comes_due_while_another_is_written_waits_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flight: list[str] = []
    for kind, first, last in ((Draft, "write_state", "seal"), (CheckpointParts, "_give", "_give")):
        for name in {first, last}:
            own = getattr(kind, name)

            def noted(self: Any, *args: Any, _own: Any = own, _name: str = name, **named: Any) -> Any:
                flight.append(f"{type(self).__name__}.{_name}")
                return _own(self, *args, **named)

            monkeypatch.setattr(kind, name, noted)
    assert psnode.run(Noted(), config(tmp_path, eval_freq=1, max_steps=4)) == 0
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == [1, 2, 3, 4]
    assert [each for each in flight if "Draft" in each] == ["Draft.write_state", "Draft.seal"] * 4
    assert flight.count("CheckpointParts._give") == 4


@pytest.mark.parametrize(
    ("residuals", "told"),
    [
        ("full", []),
        ("bf16", [("rounded", "the workers' memories are rounded to bfloat16 (--checkpoint-residuals bf16)")]),
        ("none", [("begins anew", "the workers' memories are empty: what they held is lost (--checkpoint-residuals none)")]),
    ],
)
def test_a_run_that_goes_on_from_less_than_all_memories_tells_it(tmp_path: Path, residuals: str, told: object) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert psnode.run(Noted(), config(whole)) == 0
    for last in (4, 8):
        assert psnode.run(Noted(), config(parts, max_steps=last, resume=last > 4, checkpoint_residuals=residuals)) == 0
    memories = checkpoint.complete(parts)[1]
    opened = Checkpoint.open(memories)
    types = {value.dtype for name, value in opened.tensors(checkpoint.worker_file(1)).items() if name.startswith("feedback/")}
    assert types == {"full": {torch.float32}, "bf16": {torch.bfloat16}, "none": set()}[residuals]
    assert opened.facts.get("residuals", "full") == residuals
    events = parts / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    assert [(event["event"], event["reason"]) for event in lines if event["event"] in ("rounded", "begins anew")] == told
    hashes = [json.loads((each / "summary.json").read_bytes())["model_hash"] for each in (whole, parts)]
    assert (hashes[0] == hashes[1]) == (residuals == "full")
    assert [record["step"] for record in read_records(parts / "metrics.jsonl")] == list(range(1, 9))
