"""The costs of frames through MPI: measured in a real job of two ranks, and known ones where no job can be started."""

from __future__ import annotations

import pytest

from psnode.errors import ConfigurationError
from psnode.jobs import launch
from psnode.jobs.planning.host_prices.mpi_costs import FrameCosts, frame_costs


def test_two_ranks_exchange_frames() -> None:
    found = frame_costs()
    assert 0 < found.message < 0.1 and 0 < found.byte < 1e-6
    assert found.message != FrameCosts().message


def test_a_rank_of_a_job_starts_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setattr(launch, "find_mpirun", lambda: pytest.fail("started"))
    assert frame_costs() == FrameCosts()


@pytest.mark.parametrize("program", ["false", "echo", "true"])
def test_without_a_job_nothing_is_measured(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "find_mpirun", lambda: f"/bin/{program}")
    assert frame_costs() == FrameCosts()


def test_without_mpirun_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_mpirun() -> str:
        raise ConfigurationError("there is no mpirun")

    monkeypatch.setattr(launch, "find_mpirun", find_mpirun)
    assert frame_costs() == FrameCosts()
