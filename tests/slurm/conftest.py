"""The fixture `slurm`: slurmctld, slurmd and munged, run by this user on this machine and stopped together with all jobs."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol")
SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

# one node with more cores than this machine may have; no cgroups, since containers do not allow their use
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 Gres=gpu:2
PartitionName=short Nodes=ALL Default=YES MaxTime=60
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Slurm:
    """A cluster of one node. `folder` holds its files and logs; its path must be short, since sockets lie in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._daemons = folder, list[subprocess.Popen[bytes]]()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PSNODE"))}
        self.environment = {**kept, "PATH": SBIN, "SLURM_CONF": str(folder / "slurm.conf"), "OMP_NUM_THREADS": "1"}
        # other tests add and remove network interfaces; connections over them would hang
        self.environment |= {"OMPI_MCA_btl_tcp_if_include": "lo", "PSNODE_DEADLINE": "60"}

    def begin(self) -> None:
        """Start the daemons, and block until the node accepts jobs."""
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir(mode=0o700)
        host, user = socket.gethostname(), getpass.getuser()
        settings = {"folder": self.folder, "host": host, "user": user, "controller": _free_port(), "node": _free_port()}
        (self.folder / "slurm.conf").write_text(CONF.format(**settings))
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
        munge = self.folder / "munge"
        (munge / "key").touch(mode=0o600)
        (munge / "key").write_bytes(os.urandom(128))
        files = [f"--{name}-file={munge / name}" for name in ("key", "log", "pid", "seed")]
        # munged refuses a socket below a directory that every user may write to, unless --force is given
        self._daemon("munged", "--foreground", "--force", "--num-threads=2", f"--socket={self.folder}/munge.socket", *files)
        self.wait_for(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._daemon("slurmctld", "-D", "-c")
        self._daemon("slurmd", "-D", "-c")
        self.wait_for(lambda: "idle" in self._ask("sinfo", "--noheader", "--format=%T"), "an idle node")

    def submit(self, script: str, cwd: Path) -> str:
        """Submit `script`, to run in `cwd`, and return the job's number."""
        (cwd / "job.sh").write_text(script)
        done = subprocess.run(["sbatch", "--parsable", "job.sh"], cwd=cwd, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def facts(self, job: str) -> dict[str, str]:
        """Return the fields that `scontrol show job` prints: JobState, Restarts, NumTasks, ..."""
        return dict(re.findall(r"(\S+?)=(\S*)", self._ask("scontrol", "show", "job", job)))

    def signal(self, job: str, name: str) -> None:
        """Send signal `name` to the batch script, as Slurm does before a time limit."""
        self._ask("scancel", "--batch", f"--signal={name}", job)

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
        """Block until `condition` holds. Fail after `seconds`, or as soon as a daemon exits, and show the end of every log."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or any(each.poll() is not None for each in self._daemons):
                logs = [f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.folder.glob("*.log"))]
                pytest.fail(f"waited in vain for {what}\n" + "\n".join(logs))
            time.sleep(0.05)

    def end(self) -> None:
        """Cancel all jobs, block until they have ended, and stop the daemons."""
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            jobs = self._ask("squeue", "--noheader", "--format=%i").split()
            if jobs:
                self._ask("scancel", "--signal=KILL", "--full", *jobs)
                self._ask("scancel", *jobs)
                self.wait_for(lambda: not self._ask("squeue", "--noheader", "--format=%i").split(), "the end of all jobs", 60)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _daemon(self, name: str, *arguments: str) -> None:
        command = [str(shutil.which(name, path=SBIN)), *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._daemons.append(started)

    def _ask(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        return done.stdout


def missing(programs: Sequence[str] = PROGRAMS) -> list[str]:
    """Return the names of `programs` that are not installed."""
    return [name for name in programs if shutil.which(name, path=SBIN) is None]


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """Yield a running cluster on this machine; skip the test where Slurm is not installed."""
    pytest.importorskip("mpi4py")
    if absent := missing():
        pytest.skip(f"no {absent[0]}: install slurmctld, slurmd, slurm-client and munge")
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        cluster = Slurm(Path(folder))
        try:
            cluster.begin()
            yield cluster
        finally:
            cluster.end()
