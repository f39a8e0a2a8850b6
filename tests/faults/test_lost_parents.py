"""Signals to whole process groups, and processes whose parent is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.serial

ROOT = Path(__file__).resolve().parents[2]
TASK = """
import time
from psnode.tasks.classification import Classification

class Slow(Classification):
    def __init__(self, options=None):
        super().__init__(network="LeNet", dataset="digits", seed=1)

    def train_data(self):
        return _Slow(super().train_data())

class _Slow:
    def __init__(self, data):
        self._data = data

    def __len__(self):
        return len(self._data)

    def batch(self, indices, rng):
        time.sleep(0.05)
        return self._data.batch(indices, rng)
"""
FLAGS = ["--max-steps", "100000", "--batch-size", "8", "--threads", "1", "--no-tensorboard", "--scheme", "dense", "--quiet"]


def processes(mark: str) -> list[int]:
    """Return the processes with `mark` in their environment, except zombies."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark.encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
    return found


def wait(what: Callable[[], object], process: subprocess.Popen[bytes] | None = None) -> None:
    """Block until `what` returns a true value; fail if the process ends first, or after 240 s."""
    end = time.monotonic() + 240
    while not what():
        assert time.monotonic() < end, "it did not come"
        assert process is None or process.poll() is None, "the job has ended"
        time.sleep(0.05)


def folders(job: Path) -> set[str]:
    """Return the folders of sockets, and the folders of a launcher's job in TMPDIR."""
    return {entry.name for entry in Path("/tmp").glob("pymp-*")} | {entry.name for entry in job.glob("x*/psnode-*")}


def ranks_of(mark: str) -> dict[str, int]:
    """Return the processes of the ranks, by rank, and of mpirun. Data processes share the rank's environment; the oldest of
    them is the rank.
    """
    found: dict[str, int] = {}
    for pid in sorted(processes(mark), key=began):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            rank = next((word.partition(b"=")[2].decode() for word in words if word.startswith(b"OMPI_COMM_WORLD_RANK=")), "")
            if not rank and Path(f"/proc/{pid}/comm").read_text().strip() in ("mpirun", "prterun"):
                rank = "mpirun"
            found.setdefault(rank, pid)
    return found


def began(pid: int) -> int:
    """Return the start time in ticks since the boot, or sys.maxsize if the process is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return sys.maxsize


def trained(folder: Path) -> int:
    file = folder / "run" / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts a training in its own process group, with one data process per worker and a long path in
    TMPDIR.
    """
    (tmp_path / "task.py").write_text(TASK)
    long = tmp_path / ("x" * 100)
    long.mkdir()

    def begin(*command: str, ignored: tuple[signal.Signals, ...] = ()) -> subprocess.Popen[bytes]:
        def ignore() -> None:
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)

        flags = [*FLAGS, "--data-workers", "1", "--task", "task.py:Slow", "--train-dir", "run"]
        return subprocess.Popen(
            [sys.executable, "-m", "psnode", *command, *flags],
            cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True, preexec_fn=ignore,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(long), "MARK": f"of-{tmp_path}"},
        )  # fmt: skip

    yield begin
    for pid in processes(f"MARK=of-{tmp_path}"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_a_local_training_ignores_an_interrupt_that_is_ignored_and_saves_itself_when_its_terminal_is_closed(
    start: Start, tmp_path: Path
) -> None:
    job = start("train", "--local", "1", ignored=(signal.SIGINT,))
    wait(lambda: trained(tmp_path), job)
    os.killpg(job.pid, signal.SIGINT)
    before = trained(tmp_path)
    wait(lambda: trained(tmp_path) > before + 5, job)
    os.killpg(job.pid, signal.SIGHUP)  # its data processes get the signal too
    assert job.wait(240) == 75
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))
    wait(lambda: not processes(f"MARK=of-{tmp_path}"))


@pytest.mark.sweep
@pytest.mark.parametrize("command", [["train", "--local", "1"], ["launch", "-n", "1", "--", "train"]], ids=["local", "launch"])
def test_no_process_outlives_a_training_that_is_killed(start: Start, tmp_path: Path, command: list[str]) -> None:
    pytest.importorskip("mpi4py")
    before_it = folders(tmp_path)
    job = start(*command, ignored=(signal.SIGHUP,))
    wait(lambda: trained(tmp_path), job)
    os.killpg(job.pid, signal.SIGHUP)
    before = trained(tmp_path)
    wait(lambda: trained(tmp_path) > before + 5, job)
    job.kill()
    job.wait()
    wait(lambda: not processes(f"MARK=of-{tmp_path}"))
    wait(lambda: folders(tmp_path) <= before_it)


@pytest.mark.sweep
@pytest.mark.parametrize("killed", ["0", "1", "mpirun"])
def test_no_process_outlives_a_rank_or_an_mpirun_that_is_killed(start: Start, tmp_path: Path, killed: str) -> None:
    pytest.importorskip("mpi4py")
    mark, before_it = f"MARK=of-{tmp_path}", folders(tmp_path)
    job = start("launch", "-n", "1", "--", "train")
    wait(lambda: trained(tmp_path), job)
    os.kill(ranks_of(mark)[killed], signal.SIGKILL)
    assert job.wait(240) != 0
    wait(lambda: not processes(mark))
    wait(lambda: folders(tmp_path) <= before_it)
