"""The fixture `mpirun`: real MPI jobs, ended together with every process they started.

To its end, and with a hand on its processes:

    job = mpirun(3, ["-m", "psnode", "train", "--max-steps", "3"])
    assert job.code == 0, job

    job = mpirun.start(3, [program], fault_tolerant=True)
    os.kill(job.rank_pids()[2], signal.SIGKILL)
    assert job.wait(20).code == 0
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.forking import FORKING

ROOT = Path(__file__).resolve().parents[2]


class Finished(NamedTuple):
    """End of a job: mpirun's exit code, the output of all ranks, and its duration."""

    code: int
    out: str
    err: str
    seconds: float


def _session(leader: int) -> list[int]:
    """Every process that mpirun started: ranks have process groups of their own, but stay in its session."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == leader:
                    members.append(int(entry.name))
            except OSError:
                pass  # ended meanwhile
    return members


def _runs(pid: int) -> bool:
    """True until the process has closed its files: a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class RunningJob:
    """A job that was started. `process` is mpirun itself."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self._files = folder / "out", folder / "err"
        self._began = time.monotonic()
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            self.process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(env), start_new_session=True
            )

    def output(self) -> tuple[str, str]:
        """Standard output and standard error so far."""
        return self._files[0].read_text(errors="replace"), self._files[1].read_text(errors="replace")

    def rank_pids(self) -> dict[int, int]:
        """Process id of every rank that runs now."""
        pids: dict[int, int] = {}
        for pid in _session(self.process.pid):
            try:
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            for word in words:
                if word.startswith(b"OMPI_COMM_WORLD_RANK=") and parent == self.process.pid:
                    pids[int(word.partition(b"=")[2])] = pid
        return pids

    def wait_for(self, text: str, seconds: float = 300.0) -> None:
        """Block until `text` is on standard output; fail with the whole output if it does not come."""
        end = time.monotonic() + seconds
        while text not in self.output()[0]:
            if time.monotonic() > end or self.process.poll() is not None:
                out, err = self.output()
                pytest.fail(f"{text!r} did not appear (exit code {self.process.poll()})\n{out}\n{err}")
            time.sleep(0.02)

    def wait(self, timeout: float) -> Finished:
        """Block until mpirun ends; after `timeout` seconds dump every rank's stack, kill the job and fail."""
        try:
            return Finished(self.process.wait(timeout), *self.output(), time.monotonic() - self._began)
        except subprocess.TimeoutExpired:
            for pid in self.rank_pids().values():
                os.kill(pid, signal.SIGABRT)  # faulthandler writes the stacks
            time.sleep(0.5)
            self.kill()
        out, err = self.output()
        pytest.fail(f"the job did not end within {timeout:g} s\n{out}\n{err}")

    def kill(self) -> None:
        """End every process of the job at once, and wait until they hold no lock any more."""
        for pid in _session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(60)
        end = time.monotonic() + 60
        while any(map(_runs, _session(self.process.pid))) and time.monotonic() < end:
            time.sleep(0.01)


class Mpirun:
    """Starts jobs of `n` ranks that run `python ARGS`; `options` go to mpirun, `env` to all ranks.

    Ranks are forks (tests.forking), unless a test asks for interpreters of their own.
    """

    def __init__(self, executable: str, folder: Path) -> None:
        self.executable, self._folder, self._jobs = executable, folder, list[RunningJob]()

    def start(
        self,
        n: int,
        args: Sequence[str | Path],
        *,
        fault_tolerant: bool = False,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        forked: bool = True,
    ) -> RunningJob:
        """Start a job and return at once."""
        command = [self.executable, "-n", str(n), "--oversubscribe", "--bind-to", "none"]
        if fault_tolerant:
            command += ["--with-ft", "ulfm"]
        if "btl" not in options:  # looking for other networks takes a second
            command += ["--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp"]
        command += [*options, FORKING.python() if forked else sys.executable, *map(str, args)]
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        defaults = {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
        defaults["PSNODE_DEADLINE"] = "60"  # a machine that is busy for five seconds puts no worker aside
        defaults["OMPI_MCA_btl_tcp_if_include"] = "lo"  # other tests make and remove interfaces: connections over them would hang
        folder = self._folder / f"job-{len(self._jobs)}"
        folder.mkdir()
        sessions = {"PRTE_MCA_prte_local_tmpdir_base": str(folder)}  # mpirun fails over files of a killed one of its process id
        self._jobs.append(RunningJob(command, {**os.environ, **allowed, **defaults, **sessions, **(env or {})}, folder))
        return self._jobs[-1]

    def __call__(
        self,
        n: int,
        args: Sequence[str | Path],
        *,
        timeout: float = 300.0,
        fault_tolerant: bool = False,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        forked: bool = True,
    ) -> Finished:
        """Run a job to its end, for at most `timeout` seconds."""
        return self.start(n, args, fault_tolerant=fault_tolerant, options=options, env=env, forked=forked).wait(timeout)

    def end(self) -> None:
        """Kill whatever still runs."""
        for job in self._jobs:
            if _session(job.process.pid):
                job.kill()


@pytest.fixture
def mpirun(tmp_path: Path) -> Iterator[Mpirun]:
    """Real MPI jobs; skipped where neither this Python's environment nor the PATH has mpirun."""
    pytest.importorskip("mpi4py")
    beside = Path(sys.executable).with_name("mpirun")
    executable = str(beside) if beside.exists() else shutil.which("mpirun")
    if executable is None:
        pytest.skip("no mpirun: install the extra `mpi`")
    folder = tmp_path / "mpirun"
    folder.mkdir()
    jobs = Mpirun(executable, folder)
    yield jobs
    jobs.end()
