"""The MPI transport in real jobs: the transport contract, death, missing ranks, idling, and leaving."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from psnode.transport.mpi.fragments import Fragment
from tests.transport.contract import CHECKS

PROGRAM = Path(__file__).with_name("transport_program.py")
NAMES = [check.__name__ for check in CHECKS] + ["check_closing"]
WHOLE = 1 << 30


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("ranks", "piece_bytes", "big", "links"),
    [
        (1, WHOLE, 8 << 20, "self,sm"),
        (2, WHOLE, 32 << 20, "self,sm"),
        (5, WHOLE, 4 << 20, "self,sm"),
        (2, WHOLE, 32 << 20, "self,tcp"),
        (5, WHOLE, 4 << 20, "self,tcp"),
        (2, 1024, 4 << 20, "self,sm"),
        (3, 1000, 1 << 20, "self,tcp"),
    ],
)
def test_mpi_keeps_the_contract(mpirun: Any, ranks: int, piece_bytes: int, big: int, links: str) -> None:
    job = mpirun(ranks, [PROGRAM, "contract", piece_bytes, big], options=["--mca", "pml", "ob1", "--mca", "btl", links])
    assert job.code == 0, job
    for rank in range(ranks):
        assert [line.split()[1] for line in job.out.splitlines() if line.endswith(f" {rank}")] == NAMES
    assert job.out.count("clean True") == ranks, job.out


def test_mpi_keeps_the_contract_over_whatever_mpi_chooses_itself(mpirun: Any) -> None:
    job = mpirun(2, [PROGRAM, "contract", WHOLE, 1 << 20], options=["--mca", "btl", "^usnic"])
    assert job.code == 0, job
    assert job.out.count("passed") == 2 * len(NAMES)


@pytest.mark.parametrize("links", ["self,sm", "self,tcp"])
def test_a_killed_worker_is_announced_and_the_others_go_on(mpirun: Any, links: str) -> None:
    job = mpirun.start(
        4, [PROGRAM, "death"], fault_tolerant=True, options=["--mca", "pml", "ob1", "--mca", "btl", links], forked=False
    )
    for rank in (0, 2):
        job.wait_for(f"up {rank}")
    os.kill(job.rank_pids()[2], signal.SIGKILL)
    job.wait_for("lost 2")
    done = job.wait(300)
    assert done.code == 0, done
    words = next(line for line in done.out.splitlines() if line.startswith("lost")).split()
    assert words[4:] == ["alive", "0", "1", "3"]
    assert "answers after the loss 200" in done.out
    assert sorted(line for line in done.out.splitlines() if "clean" in line) == [f"rank {r} clean False" for r in (0, 1, 3)]


def test_workers_learn_of_the_death_of_the_master_and_leave(mpirun: Any) -> None:
    job = mpirun.start(3, [PROGRAM, "orphans"], fault_tolerant=True, forked=False)
    for rank in range(3):
        job.wait_for(f"up {rank}")
    os.kill(job.rank_pids()[0], signal.SIGKILL)
    done = job.wait(300)
    assert sorted(line for line in done.out.splitlines() if line.startswith("rank")) == [
        f"rank {rank}: PeerLost(rank=0, reason='its process has died')" for rank in (1, 2)
    ]
    leaving = [line.split() for line in done.out.splitlines() if line.startswith("left")]
    assert [words[3:] for words in leaving] == [["clean", "False"]] * 2


def test_a_rank_that_does_not_report_is_named(mpirun: Any) -> None:
    job = mpirun(4, [PROGRAM, "missing"])
    assert job.code == 0, job
    assert "missing 2 | rank 2 did not report within 1 s" in job.out


def test_a_rank_that_never_starts_mpi_is_named(mpirun: Any) -> None:
    job = mpirun(3, [PROGRAM, "late"])
    assert "refused: rank 1 did not report within 1.5 s" in job.out, job


def test_an_idle_rank_uses_little_of_a_core(mpirun: Any) -> None:
    job = mpirun(3, [PROGRAM, "idle", 3])
    shares = [float(line.split()[1]) for line in job.out.splitlines() if line.startswith("idle")]
    assert len(shares) == 3, job
    assert max(shares) <= 0.10


def test_a_failure_of_the_mpi_thread_reaches_its_owner(mpirun: Any) -> None:
    job = mpirun(2, [PROGRAM, "broken"], fault_tolerant=True)
    assert "heard: MPI failed on rank 1: " in job.out, job
    assert "heard by another role: MPI failed on rank 1: " in job.out, job
    assert "not sent: " in job.out, job
    assert "refused: MPI failed on rank 1: " in job.out, job
    assert "clean True" not in job.out


@pytest.mark.parametrize(
    ("part", "nbytes", "reason"),
    [
        (Fragment.PIECE, 100, "it sent a piece of 100 bytes that belongs to no message"),
        (Fragment.TOTAL, 5, "it announced a length in 5 bytes instead of 8"),
        (Fragment.TOTAL, 8, "it sent a message of 4611686018427387904 bytes, for which there is no memory"),
    ],
)
def test_a_rank_that_sends_no_messages_but_rubbish_is_lost_alone(mpirun: Any, part: Fragment, nbytes: int, reason: str) -> None:
    job = mpirun(3, [PROGRAM, "malformed", int(part), nbytes], fault_tolerant=True)
    assert "b'all is well'" in job.out, job
    assert f"PeerLost(rank=1, reason='{reason}')" in job.out, job
    assert "alive 0 2" in job.out


def test_abort_ends_ranks_that_wait(mpirun: Any) -> None:
    job = mpirun(3, [PROGRAM, "abort"], timeout=300)
    assert job.code == 7, job


def test_close_keeps_its_deadline_when_a_rank_stays(mpirun: Any) -> None:
    job = mpirun(2, [PROGRAM, "stays"], timeout=300)
    words = next(line for line in job.out.splitlines() if line.startswith("closed")).split()
    assert float(words[2]) < 5.0
    assert words[3:] == ["clean", "False"]
    assert job.code == 5, job


def test_piece_sizes_that_mpi_cannot_count_are_refused(mpirun: Any) -> None:
    job = mpirun(1, [PROGRAM, "refused"])
    assert job.out.count("ConfigurationError piece_bytes is ") == 2, job
