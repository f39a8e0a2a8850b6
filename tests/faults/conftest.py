"""The fixture `launched`: jobs under `psnode launch`, whose ranks can be killed by process id."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from psnode.jobs.sweeping import members
from tests.forking import FORKING, descendants, fork_of

ROOT = Path(__file__).resolve().parents[2]
_FLAGS = ["--batch-size", "8", "--threads", "1", "--no-tensorboard", "--scheme", "atomo", "--lr", "0.02"]
_FLAGS += ["--log-interval", "1", "--eval-freq", "1000"]


def begun(pid: int) -> int:
    """Return the start time of a process in clock ticks since the machine's boot; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return 0


class Job:
    """A job of `workers` workers that writes to `train_dir`. `deadline` is the deadline of a round in seconds, or empty for
    psnode's default.
    """

    def __init__(self, train_dir: Path, workers: int, *flags: str, launch: Sequence[str] = (), deadline: str = "60") -> None:
        self.train_dir = train_dir
        python, ranks = FORKING.launching()
        command = [python, "-m", "psnode", "launch", "-n", str(workers), *launch, "--", "train", *_FLAGS, *flags]
        self.process = subprocess.Popen(
            [*command, "--train-dir", str(train_dir)],
            env={
                **os.environ,
                **ranks,
                "PSNODE_NORM_CAP": "off",  # these tests do not cover spikes of the loss
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                **({"PSNODE_DEADLINE": deadline} if deadline else {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def records(self) -> list[dict[str, Any]]:
        """Return the step records written so far."""
        file = self.train_dir / "metrics.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def events(self) -> list[dict[str, Any]]:
        """Return the rows of events.jsonl."""
        file = self.train_dir / "events.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def summary(self) -> dict[str, Any]:
        """Return the contents of summary.json."""
        return dict(json.loads((self.train_dir / "summary.json").read_bytes()))

    def wait_for_step(self, step: int) -> None:
        """Block until the record of `step` is written; fail if the job ends first, or after 300 s."""
        end = time.monotonic() + 300  # kernels may have to be compiled, on a busy machine
        while len(self.records()) < step:
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                pytest.fail(f"step {step} did not come: {self.process.communicate()[0]}")
            time.sleep(0.02)

    def wait_for_record(self, after: int, **values: Any) -> None:
        """Block until a record after step `after` has these values; fail if the job ends first, or after 300 s."""
        end = time.monotonic() + 300
        while not any(values.items() <= record.items() for record in self.records()[after:]):
            if self.process.poll() is not None or time.monotonic() > end:
                self.kill()
                pytest.fail(f"no step behind {after} had {values}: {self.process.communicate()[0]}")
            time.sleep(0.05)

    def pid(self, rank: int) -> int:
        """Return the process id of a rank; fail if the rank does not run."""
        found = self.pids(rank)
        if not found:
            pytest.fail(f"rank {rank} does not run")
        return found[0]

    def pids(self, rank: int) -> list[int]:
        """Return the process ids of a rank and of its children, sorted by start time: ids alone have no order, since they wrap
        around.
        """
        word, found = f"OMPI_COMM_WORLD_RANK={rank}".encode(), []
        for pid in sorted(self._processes(), key=begun):
            with contextlib.suppress(OSError):
                if word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    fork = fork_of(pid)
                    found += [pid] if fork == pid else [fork, *sorted(descendants(fork), key=begun)]
        return found

    def end(self, seconds: float = 300.0) -> tuple[int, str]:
        """Block until the job ends by itself, and return its exit code and output."""
        out, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, out

    def _processes(self) -> list[int]:
        launcher = fork_of(self.process.pid)
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        return [pid for mpirun in children for pid in members(int(mpirun))]

    def kill(self) -> None:
        """Kill all processes of the job that still run."""
        if self.process.poll() is None:
            for pid in self._processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Return a function that starts a job, as in `launched(4, "--max-steps", "20")`; the job is killed after the test."""
    pytest.importorskip("mpi4py")
    jobs: list[Job] = []

    def start(workers: int, *flags: str, **how: Any) -> Job:
        jobs.append(Job(tmp_path / "run", workers, *flags, **how))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
        if job.process.stdout is not None:
            job.process.stdout.close()
