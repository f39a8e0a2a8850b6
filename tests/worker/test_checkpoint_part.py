"""A worker's part of a checkpoint, written while its memories keep changing."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from psnode.protocol.wire import Flag
from psnode.records import checkpoint, staging, tensorfile
from psnode.records.hashed_file import HashedFile
from psnode.records.staging import StagedCheckpoint
from psnode.records.timeline import Tracer
from psnode.worker.checkpoint_part import CheckpointParts

STEP, RANK = 4, 2
PLACE = {checkpoint.PLACE: torch.tensor([3, 2]), "buffer/count": torch.tensor(7)}


class Worker:
    """A sender with one memory in two groups. `sent`: flags and tensors of its STATE frames."""

    def __init__(self, folder: Path | None, residuals: str = "full", memory: int = 1 << 20) -> None:
        self.memory = torch.arange(10, dtype=torch.float32) / 3
        self.values = self.memory.clone()
        self.sent: list[tuple[Flag, dict[str, torch.Tensor]]] = []
        self.posted: list[object] = []
        link = SimpleNamespace(rank=RANK, job=0, send=self._send, inbox=SimpleNamespace(post=self.posted.append))
        self.sender = SimpleNamespace(
            state=lambda: {"feedback/residual/w": self.memory},
            memory=lambda: [[self.memory[:4]], [self.memory[4:]]],
            before_change=None,
        )
        sender: Any = self.sender
        self.part = CheckpointParts(link, folder, sender, Tracer(RANK, enabled=False), memory, residuals)  # type: ignore[arg-type]

    def _send(self, rank: int, kind: object, body: bytes, *, step: int, version: int, flags: Flag) -> None:
        assert (rank, step, version) == (0, STEP, STEP)
        self.sent.append((flags, tensorfile.parse(body, "sent")))

    def push(self) -> None:
        """Change every group's memory, as the following step does."""
        for group, part in enumerate(self.sender.memory()):
            self.sender.before_change(group)
            part[0] += 1


@pytest.fixture
def amid(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of functions to call once a part of the memories has been written to the file."""
    found: list[Any] = []
    own = HashedFile.take

    def take(file: HashedFile, count: int) -> None:
        own(file, count)
        if count == 40:
            while found:
                found.pop()()

    monkeypatch.setattr(HashedFile, "take", take)
    return found


def adopted(folder: Path, draft: StagedCheckpoint, worker: Worker) -> dict[str, torch.Tensor]:
    """Return the worker's part as the checkpoint stores it."""
    [(flags, told)] = worker.sent
    assert flags is Flag.WRITTEN and torch.equal(told["buffer/count"], PLACE["buffer/count"])
    entry = staging.told(told, RANK)
    assert not isinstance(entry, OSError)
    draft.adopt(checkpoint.worker_file(RANK), entry)
    found = checkpoint.Checkpoint.open(draft.publish({"workers": 2}))
    found.verify()
    return found.tensors(checkpoint.worker_file(RANK))


@pytest.mark.parametrize("moment", ["before", "amid", "behind"])
def test_it_is_as_the_memories_were_though_steps_go_on(tmp_path: Path, amid: list[Any], moment: str) -> None:
    worker, draft, gate = Worker(tmp_path), StagedCheckpoint(tmp_path, STEP), threading.Event()
    amid.append({"before": lambda: None, "amid": worker.push, "behind": lambda: None}[moment])
    worker.part._thread._executor.submit(gate.wait)
    worker.part.begin(STEP, PLACE)
    if moment == "before":
        worker.push()
    gate.set()
    worker.part.finish()
    if moment == "behind":
        worker.push()
    found = adopted(tmp_path, draft, worker)
    assert torch.equal(found["feedback/residual/w"], worker.values)
    assert not torch.equal(worker.memory, worker.values)
    assert torch.equal(found[checkpoint.PLACE], PLACE[checkpoint.PLACE])
    worker.part.close()


def test_who_writes_stands_back_for_those_who_train(tmp_path: Path, amid: list[Any]) -> None:
    worker, found = Worker(tmp_path), list[int]()
    StagedCheckpoint(tmp_path, STEP)
    amid.append(lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    worker.part.prepare()
    worker.part.begin(STEP, PLACE)
    worker.part.finish()
    assert found == [min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)]
    worker.part.close()


def test_a_worker_without_room_for_copies_waits_for_its_writer(tmp_path: Path) -> None:
    worker, draft, gate = Worker(tmp_path, memory=1), StagedCheckpoint(tmp_path, STEP), threading.Event()
    worker.part._thread._executor.submit(gate.wait)
    worker.part.begin(STEP, PLACE)
    pushing = threading.Thread(target=worker.push)
    pushing.start()
    assert torch.equal(worker.memory, worker.values)
    gate.set()
    pushing.join()
    worker.part.finish()
    assert torch.equal(adopted(tmp_path, draft, worker)["feedback/residual/w"], worker.values)
    worker.part.close()


@pytest.mark.parametrize("shared", [True, False])
def test_memories_are_halved_or_left_out_where_that_is_asked_for(tmp_path: Path, shared: bool) -> None:
    for residuals, expected in (("bf16", torch.bfloat16), ("none", None)):
        folder = tmp_path / residuals
        draft = StagedCheckpoint(folder, STEP)
        worker = Worker(folder if shared else None, residuals)
        worker.part.begin(STEP, PLACE)
        worker.part.finish()
        found = adopted(folder, draft, worker) if shared else worker.sent[0][1]
        assert torch.equal(found["buffer/count"], PLACE["buffer/count"])
        if expected is None:
            assert "feedback/residual/w" not in found
        else:
            assert torch.equal(found["feedback/residual/w"], worker.values.bfloat16())
        worker.part.close()


@pytest.mark.parametrize("changed", [False, True])
def test_a_part_that_the_disk_does_not_take_is_sent_as_long_as_nothing_has_changed(
    tmp_path: Path, amid: list[Any], changed: bool
) -> None:
    worker = Worker(tmp_path)
    StagedCheckpoint(tmp_path, STEP)

    def full() -> None:
        if changed:
            worker.push()
        raise OSError(28, "No space left on device")

    amid.append(full)
    worker.part.begin(STEP, PLACE)
    worker.part.finish()
    [(flags, told)] = worker.sent
    if changed:
        error = staging.told(told, RANK)
        assert flags is Flag.WRITTEN and isinstance(error, OSError) and error.errno == 28 and "rank 2" in str(error)
    else:
        assert flags is Flag.NONE and torch.equal(told["feedback/residual/w"], worker.values)
    worker.part.close()


def test_an_error_that_is_none_of_the_disk_s_ends_the_training(tmp_path: Path, amid: list[Any]) -> None:
    worker = Worker(tmp_path)
    StagedCheckpoint(tmp_path, STEP)

    def broken() -> None:
        raise ZeroDivisionError

    amid.append(broken)
    worker.part.begin(STEP, PLACE)
    worker.part.finish()
    assert [type(event) for event in worker.posted] == [ZeroDivisionError] and worker.sent == []
    worker.push()  # does not block
    worker.part.close()
