"""The fixture `mpirun`: real MPI jobs, which are killed after the test together with every process that they started.

A job that runs to its end, and a job whose ranks get signals:

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

from tests.forking import FORKING, fork_of

ROOT = Path(__file__).resolve().parents[2]


class Finished(NamedTuple):
    """The end of a job: exit code of mpirun, output of all ranks, and duration in seconds."""

    code: int
    out: str
    err: str
    seconds: float


def _session(leader: int) -> list[int]:
    """Return the processes of the session that `leader` leads. mpirun leads one: ranks form process groups but stay in its
    session.
    """
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == leader:
                    members.append(int(entry.name))
            except OSError:
                pass  # the process has ended meanwhile
    return members


def _runs(pid: int) -> bool:
    """Return True until the process has closed its files, which a zombie has done."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class RunningJob:
    """A started job. `process` is mpirun itself."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self._files = folder / "out", folder / "err"
        self._began = time.monotonic()
        with self._files[0].open("wb") as out, self._files[1].open("wb") as err:
            self.process = subprocess.Popen(
                list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=dict(env), start_new_session=True
            )

    def output(self) -> tuple[str, str]:
        """Return the standard output and the standard error written so far."""
        return self._files[0].read_text(errors="replace"), self._files[1].read_text(errors="replace")

    def rank_pids(self) -> dict[int, int]:
        """Return the process id of every running rank, by rank."""
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
        """Block until `text` appears on standard output. Fail, with all output, after `seconds` or when mpirun ends first."""
        end = time.monotonic() + seconds
        while text not in self.output()[0]:
            if time.monotonic() > end or self.process.poll() is not None:
                out, err = self.output()
                pytest.fail(f"{text!r} did not appear (exit code {self.process.poll()})\n{out}\n{err}")
            time.sleep(0.02)

    def wait(self, timeout: float) -> Finished:
        """Block until mpirun ends. After `timeout` seconds, have every rank write its stacks, kill the job and fail."""
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
        """Kill every process of the job at once, forks too, and wait up to 60 s until they hold no file locks."""
        members = _session(self.process.pid)
        forks = [fork for pid in members if (fork := fork_of(pid)) != pid]
        for pid in (*forks, *members):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(60)
        end = time.monotonic() + 60
        while any(map(_runs, [*forks, *_session(self.process.pid)])) and time.monotonic() < end:
            time.sleep(0.01)


class Mpirun:
    """Starts jobs of `n` ranks that run `python ARGS`, with `options` for mpirun and `env` for all ranks.

    Ranks are forks (tests.forking) unless `forked` is False.
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
        if "btl" not in options:  # the search for other networks takes a second
            command += ["--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp"]
        command += [*options, FORKING.python() if forked else sys.executable, *map(str, args)]
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        defaults = {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
        defaults["PSNODE_DEADLINE"] = "60"  # no worker is put aside if a busy machine delays it by five seconds
        defaults["OMPI_MCA_btl_tcp_if_include"] = "lo"  # other tests change interfaces: connections over them would hang
        folder = self._folder / f"job-{len(self._jobs)}"
        folder.mkdir()
        # else mpirun fails over files left by a killed mpirun with the same process id
        sessions = {"PRTE_MCA_prte_local_tmpdir_base": str(folder)}
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
        """Run a job until it ends; fail after `timeout` seconds."""
        return self.start(n, args, fault_tolerant=fault_tolerant, options=options, env=env, forked=forked).wait(timeout)

    def end(self) -> None:
        """Kill all jobs that still run."""
        for job in self._jobs:
            if _session(job.process.pid):
                job.kill()


@pytest.fixture
def mpirun(tmp_path: Path) -> Iterator[Mpirun]:
    """Yield a starter of MPI jobs; skip the test if mpirun is neither in this Python's environment nor on the PATH."""
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
