"""Predicted steps by the number of workers: the cells of the table and the figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from psnode.errors import ConfigurationError
from psnode.jobs.planning.forecast import forecasts
from psnode.jobs.planning.scenario import Scenario
from studies.curves import STUDY, Options, draw
from studies.harness import page, run
from tests.jobs.planning.refitting.run_cases import profile


def options(tmp_path: Path, **given: object) -> Options:
    profile().save(tmp_path / "profile.json")
    return Options(**{"profile": str(tmp_path / "profile.json"), "rate": "1mbit", "host_cores": 4, "workers": (8, 2), **given})  # type: ignore[arg-type]


def test_every_scheme_has_a_row_for_each_topology_and_a_column_for_each_number_of_workers(tmp_path: Path) -> None:
    result = run(STUDY, options(tmp_path, topology=("star", "gather")))
    own = {(row["name"], row["topology"]): row["seconds"] for row in result["rows"]}
    assert set(own) == {("DDP fp32", ""), *((name, way) for name in ("qsgd", "topk", "dense") for way in ("star", "gather"))}
    for workers in (2, 8):
        for each in forecasts(profile(), Scenario(workers, 1e6, 2e-4, 4), ("star", "gather")):
            assert own[each.name, "" if each.peer else each.topology][str(workers)] == each.seconds
    lines = page(STUDY, result).splitlines()
    assert "| scheme | topology | 2 | 8 |" in lines
    [line] = [line for line in lines if line.startswith("| qsgd | star |")]
    assert line == f"| qsgd | star | {1e3 * own['qsgd', 'star']['2']:,.0f} | {1e3 * own['qsgd', 'star']['8']:,.0f} |"
    draw(result, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 1000


def test_a_topology_that_is_not_predicted_for_so_many_workers_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match="star:down=tree: train refuses all schemes, or a step of 3000 workers has too many frames"
    ):
        run(STUDY, options(tmp_path, topology=("gather", "star:down=tree"), workers=(3000,)))
