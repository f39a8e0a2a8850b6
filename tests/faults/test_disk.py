"""Checkpoints on a failing disk: the writer dies or gets an error at each of its system calls, or space runs out."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import psnode
from psnode.config import Config
from psnode.errors import CheckpointError, ConfigurationError
from psnode.master.events import Events
from psnode.records import checkpoint, staging, tensorfile
from psnode.records.checkpoint import Checkpoint
from psnode.records.directory import claim
from psnode.records.history import violations
from psnode.records.metrics import read_records
from psnode.records.retention import prune
from psnode.records.snapshots.snapshot import Raw, Snapshot, SnapshotMemory
from psnode.records.staging import StagedCheckpoint
from psnode.records.tensorfile import content_of
from psnode.tasks.classification import Classification
from tests.faults.traced import AVAILABLE, RAISED, Trace, traced

at_calls = [
    pytest.mark.skipif(not AVAILABLE, reason="system calls are followed on Linux on x86-64 only"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
OLD, NEW = 3, 6


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((3000,), float(step))}


def publish(train_dir: Path, step: int) -> None:
    """Write all parts of a checkpoint with the functions that a job uses."""
    draft = StagedCheckpoint(train_dir, step)
    parts = {name: weights(step)["w"] for name in (checkpoint.worker_file(1), checkpoint.MODEL, checkpoint.OPTIMIZER)}
    with contextlib.closing(Training(parts.values())) as training:
        written = staging.write_part(train_dir, step, 0, 1, content_of({"w": parts[checkpoint.worker_file(1)]}), training.read)
        draft.adopt(checkpoint.worker_file(1), written)
        draft.add(checkpoint.worker_file(2), tensorfile.dump(weights(step)))
        for name in (checkpoint.MODEL, checkpoint.OPTIMIZER):
            draft.add_content(name, content_of({"w": parts[name]}), training.read)
        draft.publish({"workers": 2})
        prune(train_dir, step, keep_last=1)


class Training:
    """A thread that keeps changing all of `tensors`: once during the writing, and repeatedly afterwards."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = list(tensors)
        self._snapshot = Snapshot(self._tensors, [[tensor] for tensor in self._tensors], SnapshotMemory(1 << 20))
        self._goes_on, self._begun, self._over = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def read(self, tensor: torch.Tensor, start: int, out: Raw) -> None:
        self._snapshot.read(tensor, start, out)
        self._goes_on.set()
        self._begun.wait()

    def close(self) -> None:
        """End the thread, also after a failed writing: otherwise it would run beside all other tests."""
        self._over.set()
        self._goes_on.set()
        self._thread.join()

    def _train(self) -> None:
        self._goes_on.wait()
        while not self._over.is_set():
            for part, tensor in enumerate(self._tensors):
                self._snapshot.protect(part)
                tensor += 1
            self._begun.set()


@pytest.fixture
def disturbed(tmp_path: Path) -> Callable[..., tuple[Path, Trace]]:
    """Return a function that disturbs the writer of a second checkpoint, for example `disturbed(last=4)`, and
    returns its trace.
    """
    publish(tmp_path / "before", OLD)

    def run(**how: int) -> tuple[Path, Trace]:
        train_dir = tmp_path / "run"
        shutil.rmtree(train_dir, ignore_errors=True)
        shutil.copytree(tmp_path / "before", train_dir)
        return train_dir, traced(lambda: publish(train_dir, NEW), train_dir, **how)

    return run


def check_whole(train_dir: Path) -> int:
    """Check that every checkpoint that a reader sees is complete and correct, and return the step of the latest."""
    newest = checkpoint.latest(train_dir)
    assert newest is not None and newest in checkpoint.complete(train_dir)
    for path in checkpoint.complete(train_dir):
        found = Checkpoint.open(path)
        found.verify()
        files = {checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint.worker_file(1), checkpoint.worker_file(2)}
        assert set(found.facts["files"]) == files
        assert all(torch.equal(found.tensors(name)["w"], weights(found.step)["w"]) for name in files)
    return checkpoint.step_of(newest)


def check_goes_on(train_dir: Path) -> None:
    """Check that the job, started again, writes checkpoint NEW, and that `checkpoints/` then holds only it and `latest`."""
    staging.sweep(train_dir)
    publish(train_dir, NEW)
    assert check_whole(train_dir) == NEW
    assert sorted(path.name for path in (train_dir / "checkpoints").iterdir()) == ["latest", "step-00000006"]


def lose_what_was_not_synced(train_dir: Path, volatile: set[int]) -> None:
    """Empty all files with writes that were not synced: a power failure can destroy at most these contents."""
    for path in train_dir.rglob("*"):
        if path.is_file() and path.stat().st_ino in volatile:
            os.truncate(path, 0)


class TestEverySystemCall:
    """Faults at each system call by which the writer of a checkpoint of four files changes files. An earlier checkpoint
    exists, and only the newest one is kept.
    """

    pytestmark = at_calls

    def test_a_writer_that_is_killed_leaves_whole_checkpoints(
        self, disturbed: Callable[..., tuple[Path, Trace]], sampled: Callable[..., Any]
    ) -> None:
        _, undisturbed = disturbed()
        assert undisturbed.code == 0 and len(undisturbed.calls) > 25
        latest = []
        for number in sampled(range(1, len(undisturbed.calls) + 1)):
            train_dir, trace = disturbed(last=number)
            assert trace.code == -signal.SIGKILL, (number, undisturbed.calls[number - 1])
            lose_what_was_not_synced(train_dir, trace.volatile)
            latest.append(check_whole(train_dir))
            check_goes_on(train_dir)
        assert latest == sorted(latest) and set(latest) == {OLD, NEW}

    def test_a_call_that_fails_is_told_and_leaves_whole_checkpoints(
        self, disturbed: Callable[..., tuple[Path, Trace]], sampled: Callable[..., Any]
    ) -> None:
        _, undisturbed = disturbed()
        for number, (name, path) in sampled(list(enumerate(undisturbed.calls, 1))):
            train_dir, trace = disturbed(fails=number, error=errno.EIO if name == "fsync" else errno.ENOSPC)
            assert trace.code in (0, RAISED), (number, name, path)
            assert check_whole(train_dir) == NEW or trace.code == RAISED, f"{name} of {path} failed, and nobody was told"

    def test_names_are_synced_before_anything_relies_on_them(self, disturbed: Callable[..., tuple[Path, Trace]]) -> None:
        _, trace = disturbed()
        draft = "checkpoints/.step-00000006"
        appears = trace.calls.index(("rename", draft))
        named = trace.calls.index(("rename", f"checkpoints/.latest.{trace.pid}"))
        old_goes = trace.calls.index(("rename", "checkpoints/step-00000003"))
        for directory in (draft, f"{draft}/state"):
            changes = [
                number
                for number, (name, path) in enumerate(trace.calls[:appears])
                if name in ("openat", "mkdir", "renameat") and os.path.dirname(path) == directory
            ]
            assert ("fsync", directory) in trace.calls[max(changes) : appears]
        assert ("fsync", "checkpoints") in trace.calls[appears:named]
        assert ("fsync", "checkpoints") in trace.calls[named:old_goes]


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[Path]:
    """Mount a file system in memory, and yield its path."""
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "psnode", place], capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"file systems cannot be mounted here: {made.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a disk of 256 KiB."""
    with mounted(tmp_path / "disk", "size=256k") as place:
        yield place


def fill(disk: Path) -> Path:
    """Fill the disk with a file, and return its path."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


@pytest.mark.parametrize("room", [0, 20_480, 40_960, 49_152], ids=["first file", "second", "third", "manifest"])
def test_a_full_disk_keeps_the_last_checkpoint_and_takes_the_next_when_there_is_room(small_disk: Path, room: int) -> None:
    publish(small_disk, OLD)
    ballast = fill(small_disk)
    os.truncate(ballast, ballast.stat().st_size - room)
    with pytest.raises(OSError, match=r"[Nn]o space left"):
        publish(small_disk, NEW)
    assert check_whole(small_disk) == OLD
    ballast.unlink()
    check_goes_on(small_disk)


def test_a_read_only_disk_keeps_its_checkpoint_and_starts_no_job(small_disk: Path) -> None:
    publish(small_disk, OLD)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(OSError, match=r"[Rr]ead-only"):
        publish(small_disk, NEW)
    assert check_whole(small_disk) == OLD
    for train_dir in (small_disk / "run", small_disk):
        with pytest.raises(ConfigurationError, match=r"--train-dir|already holds a run"):
            claim(Config(train_dir=train_dir, local=2))


class Fills(Classification):
    """A task on digits that fills the disk in one step and frees the space in another.

    Before filling, the task waits for the event `kept`, which means that a checkpoint is on the disk; before freeing, for the
    event `told`. It counts steps by their backward passes, the first of which measures the order of gradients.
    """

    def __init__(self, disk: Path, full: int = -1, free: int | None = None, kept: threading.Event | None = None) -> None:
        super().__init__("LeNet", "digits", seed=1)
        self.disk, self.full, self.free, self.step = disk, full, free, -1
        self.kept, self.told = kept or threading.Event(), threading.Event()

    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        loss, outputs = super().loss(model, batch)
        if loss.requires_grad:
            loss.register_hook(self.passed)
        return loss, outputs

    def passed(self, gradient: torch.Tensor) -> None:
        self.step += 1
        if self.step == self.full:
            self.kept.wait()  # the checkpoint before is written during the training
            fill(self.disk)
        if self.step == self.free:
            self.told.wait()
            (self.disk / "ballast").unlink()


@pytest.fixture
def large_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a disk of 64 MiB, with room for several checkpoints of LeNet."""
    with mounted(tmp_path / "disk", "size=64m") as place:
        yield place


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when a checkpoint is on the disk."""
    found, publish = threading.Event(), StagedCheckpoint.publish

    def published(self: StagedCheckpoint, facts: Mapping[str, Any], *, preferred: bool = True) -> Path:
        path = publish(self, facts, preferred=preferred)
        found.set()
        return path

    monkeypatch.setattr(StagedCheckpoint, "publish", published)
    return found


def config(train_dir: Path, **changed: Any) -> Config:
    settings = {"scheme": "qsgd", "feedback": "ef", "batch_size": 8, "max_steps": 40, "eval_freq": 4, "local": 1, "lr": 0.005}
    settings |= {"threads": 1, "tensorboard": False, "keep_last": 2}
    return Config(train_dir=train_dir, **{**settings, **changed})


def summary(train_dir: Path) -> dict[str, Any]:
    return dict(json.loads((train_dir / "summary.json").read_bytes()))


def test_a_run_goes_on_while_its_disk_is_full_and_is_complete_if_there_is_room_again(
    large_disk: Path,
    tmp_path: Path,
    kept: threading.Event,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train_dir, task, tell = large_disk / "run", Fills(large_disk, full=6, free=30, kept=kept), Events.tell

    def told(self: Events, event: str, step: int, rank: int | None = None, reason: str = "") -> None:
        tell(self, event, step, rank, reason)
        if (event, step) == ("not saved", 28):
            task.told.set()

    monkeypatch.setattr(Events, "tell", told)
    assert psnode.run(task, config(train_dir, record_history=True)) == 0
    assert [checkpoint.step_of(path) for path in checkpoint.complete(train_dir)] == [36, 40]
    assert [record["step"] for record in read_records(train_dir / "metrics.jsonl")] == list(range(1, 41))
    told = capfd.readouterr().err
    said = re.findall(r"step (\d+): not saved: its checkpoint cannot be written: (?:rank 1: )?No space", told)
    assert said == ["8", "12", "16", "20", "24", "28"]
    assert violations(train_dir) == []
    assert told.count("metrics.jsonl cannot be written: No space left on device: its lines wait") == 1
    assert psnode.run(Fills(large_disk), config(tmp_path / "undisturbed")) == 0
    assert summary(train_dir)["model_hash"] == summary(tmp_path / "undisturbed")["model_hash"]


def test_a_run_whose_last_checkpoint_does_not_fit_ends_with_5_and_can_be_resumed(
    large_disk: Path, tmp_path: Path, kept: threading.Event
) -> None:
    train_dir = large_disk / "run"
    with pytest.raises(CheckpointError, match=r"step 20 cannot .* \(No space.*newest is step-00000004.*--resume") as caught:
        psnode.run(Fills(large_disk, full=6, kept=kept), config(train_dir, max_steps=20))
    assert caught.value.exit_code == 5
    (large_disk / "ballast").unlink()
    assert psnode.run(Fills(large_disk), config(train_dir, max_steps=20, resume=True)) == 0
    assert psnode.run(Fills(large_disk), config(tmp_path / "undisturbed", max_steps=20)) == 0
    assert summary(train_dir)["model_hash"] == summary(tmp_path / "undisturbed")["model_hash"]
