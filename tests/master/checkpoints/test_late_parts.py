"""Workers that write their part of a checkpoint while it is published without this part, or later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from psnode.config import Config
from psnode.exchange.shard.consistency import Synchronous
from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.events import Events
from psnode.protocol.wire import Flag, Frame, Kind
from psnode.records import checkpoint, staging, tensorfile
from psnode.records.checkpoint import Checkpoint
from psnode.records.directory import claim
from psnode.records.hashed_file import HashedFile
from psnode.records.staging import StagedCheckpoint
from psnode.records.tensorfile import content_of
from psnode.records.timeline import Tracer
from psnode.worker.checkpoint_part import CheckpointParts
from tests.exchange.shard.small import small_plan, small_shard

STEP = 5
SIZES = {1: 3, 2: 5000}  # sizes of the memories of two workers, by rank


def pending(folder: Path) -> PendingCheckpoints:
    model = nn.Linear(2, 3)
    config = Config(scheme="dense", train_dir=folder)
    shard = small_shard(model, config, Synchronous(2, backups=True))
    with claim(config) as run:
        pass
    tracer = Tracer(0, enabled=False)
    plan = small_plan(model, config)
    return PendingCheckpoints(run, shard, model, plan, tracer, Events(folder), workers=2, rounds_go_on=True)


def memories(rank: int) -> dict[str, torch.Tensor]:
    return {"feedback/residual/weight": torch.full((SIZES[rank],), float(rank))}


def contribute(folder: Path, rank: int, sent: list[Frame]) -> None:
    """Write the part of this rank, as its worker does when it has reached the version."""

    def send(rank_to: int, kind: Kind, body: bytes, *, step: int, version: int, flags: Flag = Flag.NONE) -> None:
        sent.append(Frame(kind, flags, rank, 0, step, version, np.frombuffer(body, np.uint8)))

    link, held = SimpleNamespace(rank=rank, job=0, send=send), memories(rank)
    sender = SimpleNamespace(state=lambda: held, memory=lambda: [list(held.values())])
    worker = CheckpointParts(link, folder, sender, Tracer(rank, enabled=False), 0, "full")  # type: ignore[arg-type]
    worker.begin(STEP, {})
    worker.finish()
    worker.close()


def newest(folder: Path) -> Checkpoint:
    path = checkpoint.latest(folder)
    assert path is not None
    return Checkpoint.open(path)


def check(folder: Path) -> None:
    """Check that the checkpoint is the one that was decided on: with the first worker's part and without the second's."""
    found = newest(folder)
    found.verify()
    assert set(found.facts["files"]) == {checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.worker_file(1)}
    assert {path.name for path in found.path.iterdir()} == {"manifest.json", "state", *found.facts["files"]} - {
        checkpoint.OPTIMIZER
    }
    assert torch.equal(
        found.tensors(checkpoint.worker_file(1))["feedback/residual/weight"], memories(1)["feedback/residual/weight"]
    )


def publish_without_the_second(folder: Path) -> Callable[[], None]:
    """Begin a checkpoint of two workers, let one contribute, and return a function that publishes the checkpoint without the
    other.
    """
    found = pending(folder)
    found.begin(STEP, [1, 2], 0.0)
    sent: list[Frame] = []
    contribute(folder, 1, sent)
    found.take(*sent)

    def go_on() -> None:
        found.give_up(2)
        found.finish()
        assert len(found) == 0

    return go_on


@pytest.mark.parametrize("moment", [checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.MANIFEST, checkpoint.LATEST])
def test_a_worker_that_wakes_up_while_the_checkpoint_is_written_is_no_part_of_it(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[int] = []

    def wake(name: object) -> None:
        if str(name).endswith(moment) and not late:
            late.append(rank := 2)
            contribute(tmp_path, rank, [])

    for module, name in ((StagedCheckpoint, "add_content"), (staging, "write_file"), (checkpoint, "write_atomically")):
        own = getattr(module, name)

        def watched(
            *args: Any, _own: Callable[..., Any] = own, _place: int = int(module is StagedCheckpoint), **named: Any
        ) -> Any:
            wake(args[_place])
            return _own(*args, **named)

        monkeypatch.setattr(module, name, watched)
    publish_without_the_second(tmp_path)()
    assert late, "nobody was late"
    check(tmp_path)
    contribute(tmp_path, 2, [])  # contributes again after everything has ended
    check(tmp_path)


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Split the second worker's write into halves. Return a list; its functions are called once between the halves."""
    between: list[Callable[[], None]] = []
    own = HashedFile.take

    def take(file: HashedFile, count: int) -> None:
        own(file, count)
        if not file._file.name.endswith(checkpoint.worker_file(2)):  # the master writes in a thread at the same time
            return
        file._flush()
        while between:
            between.pop()()

    monkeypatch.setattr(HashedFile, "take", take)
    return between


def test_a_worker_that_was_stopped_amid_its_writing_ends_it_elsewhere(tmp_path: Path, halves: list[Callable[[], None]]) -> None:
    go_on = publish_without_the_second(tmp_path)
    halves.append(go_on)
    sent: list[Frame] = []
    contribute(tmp_path, 2, sent)
    check(tmp_path)
    assert [str(staging.told(tensorfile.parse(bytes(frame.body), ""), 2)) for frame in sent] == [
        "[Errno 2] rank 2: No such file or directory"
    ]  # only the master knows if a rank waits


def test_what_a_worker_could_not_write_whole_it_sends(tmp_path: Path, halves: list[Callable[[], None]]) -> None:
    found = pending(tmp_path)
    found.begin(STEP, [1, 2], 0.0)

    def full() -> None:
        raise OSError(28, "No space left on device")

    sent: list[Frame] = []
    contribute(tmp_path, 1, sent)
    halves.append(full)
    contribute(tmp_path, 2, sent)
    for frame in sent:
        found.take(frame)
    found.finish()
    opened = newest(tmp_path)
    for rank in (1, 2):
        tensors = opened.tensors(checkpoint.worker_file(rank))
        assert torch.equal(tensors["feedback/residual/weight"], memories(rank)["feedback/residual/weight"])


def test_a_writer_of_an_earlier_start_of_the_job_does_not_touch_what_this_one_writes(tmp_path: Path) -> None:
    for job in (7, 8):
        staging.sweep(tmp_path)
        draft = StagedCheckpoint(tmp_path, STEP, job)
        staging.write_part(tmp_path, STEP, job, 1, content_of(memories(1)))
    written = staging.write_part(tmp_path, STEP, 8, 1, content_of(memories(1)))
    with pytest.raises(FileNotFoundError):
        staging.write_part(tmp_path, STEP, 7, 1, content_of({"feedback/residual/weight": torch.zeros(9)}))
    draft.adopt(checkpoint.worker_file(1), written)
    draft.add_tensors(checkpoint.MODEL, {"w": torch.ones(3)})
    opened = Checkpoint.open(draft.publish({"workers": 1}))
    assert torch.equal(
        opened.tensors(checkpoint.worker_file(1))["feedback/residual/weight"], memories(1)["feedback/residual/weight"]
    )


def test_a_part_that_is_said_to_lie_there_and_does_not_is_left_out(tmp_path: Path) -> None:
    found = pending(tmp_path)
    found.begin(STEP, [1, 2], 0.0)
    sent: list[Frame] = []
    contribute(tmp_path, 1, sent)
    contribute(tmp_path, 2, sent)
    for path in (tmp_path / checkpoint.CHECKPOINTS).rglob(checkpoint.worker_file(2)):
        path.unlink()
    for frame in sent:
        found.take(frame)
    found.finish()
    check(tmp_path)
