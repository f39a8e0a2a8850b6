"""The rank of this process before MPI is initialised, from the environment variables that launchers set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

# The most specific names come first: mpirun inside a Slurm allocation takes precedence over Slurm. Slurm's own variables count
# only in a job step (srun), since a batch script has them too.
_PAIRS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
)


UNBUFFERED = ("--stream-buffering", "0")  # makes Open MPI's mpirun forward bytes immediately instead of whole lines


class WorldRank(NamedTuple):
    """The rank of a process in its job, and the number of processes in the job."""

    rank: int
    size: int


def place(environ: Mapping[str, str] = os.environ) -> WorldRank | None:
    """Return this process's rank and the size of its job; None if no launcher started it."""
    pairs = _PAIRS + ((("SLURM_PROCID", "SLURM_NTASKS"),) if "SLURM_STEP_ID" in environ else ())
    for rank_name, size_name in pairs:
        rank, size = environ.get(rank_name, ""), environ.get(size_name, "")
        if rank.isdecimal() and size.isdecimal() and int(rank) < int(size):
            return WorldRank(int(rank), int(size))
    return None


def local_rank(environ: Mapping[str, str] = os.environ) -> int | None:
    """Return this process's number among the ranks of its host, from 0; None if the launcher does not give a number.

    The number in Slurm's variable is used only in processes that Slurm has started itself. If mpirun runs inside an
    allocation, this number belongs to the process of mpirun.
    """
    names = ["OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK"]
    here = place(environ)
    slurms = (environ.get("SLURM_PROCID"), environ.get("SLURM_NTASKS"))
    if "SLURM_STEP_ID" in environ and here is not None and slurms == (str(here.rank), str(here.size)):
        names.append("SLURM_LOCALID")
    found = next((environ[name] for name in names if environ.get(name, "").isdecimal()), None)
    return None if found is None else int(found)


def on_one_host(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if all ranks are known to run on this host."""
    found = place(environ)
    return found is not None and environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(found.size)


def job_name(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return a name that all ranks of this job share and no other job on this host has; None if the launcher gives no name."""
    for names in (("PMIX_NAMESPACE",), ("SLURM_JOB_ID", "SLURM_STEP_ID"), ("PMI_JOBID",)):
        if all(environ.get(name) for name in names):
            return ".".join(environ[name] for name in names)
    return None


def moves_on_a_terminal(launcher: Path | None = None) -> bool:
    """Return True if the launcher writes to a terminal and passes on a rank's output before a line is complete.

    `launcher`: the launcher's directory in /proc. By default it is that of this process's parent; on the host where mpirun
    runs, the parent is mpirun.
    """
    found = launcher or Path(f"/proc/{os.getppid()}")
    try:
        words = (found / "cmdline").read_bytes().decode(errors="replace").replace("=", "\0").split("\0")
        return UNBUFFERED in pairwise(words) and os.readlink(found / "fd" / "1").startswith(("/dev/pts/", "/dev/tty"))
    except OSError:
        return False
