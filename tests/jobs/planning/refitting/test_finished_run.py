"""A finished run as a refit reads it: medians of the steps that count, and one line for every run that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psnode.errors import ConfigurationError
from psnode.jobs.planning.refitting.finished_run import FEWEST, FinishedRun
from psnode.plans.roles import Layout
from psnode.protocol.link_rates import LinkRates
from psnode.records.directory import CONFIG
from psnode.records.machines import MACHINES
from psnode.records.metrics import METRICS
from tests.jobs.planning.refitting.run_cases import HALVES, make_run, record


def test_the_figures_are_medians_of_later_steps_of_all_workers(tmp_path: Path) -> None:
    """Check that the figures leave out the first two steps and a step with a missing worker, which take a hundred seconds;
    the median of the others is 1.5 s.
    """
    slow = {**record(1)["seconds"], "step": 100.0}
    records = [record(step, seconds=slow) for step in (1, 2)]
    records += [record(step, seconds={**slow, "step": 1.0 + step / 10}) for step in range(11)]
    records = [{**each, "step": number} for number, each in enumerate(records, 1)]
    records.append(record(14, seconds=slow, contributing=2))
    run = FinishedRun.read(make_run(tmp_path / "run", records))
    assert (run.steps, run.workers, run.plan) == (11, 3, HALVES)
    assert run.measured == pytest.approx((1.5, 0.604, 0.012, 0.024, 0.03, 3000.0, 500.0))
    assert (run.prediction, run.links, run.cores, run.crowded) == (None, None, None, False)


def test_the_steps_are_those_of_the_last_part_and_weights_went_to_spares_too(tmp_path: Path) -> None:
    records = [record(step, workers=2, contributing=2) for step in range(1, 21)]
    records += [record(step, downlink_bytes=5 * 500) for step in range(21, 33)]
    run = FinishedRun.read(make_run(tmp_path / "run", records, more={"parts": [[0, 2], [20, 3]]}, spares=2))
    assert (run.steps, run.workers, run.measured.received) == (10, 3, 500.0)


def test_prediction_links_and_hosts_are_taken_if_they_are_recorded(tmp_path: Path) -> None:
    told = {"step": 0.5, "workers": 3, "source": "psnode plan, 100mbit", "binds": "link"}
    links = {"round_trip": 0.001, "up": 2e6, "down": 3e6}
    path = make_run(tmp_path / "run", more={"prediction": told, "links": links})
    ranks = {str(rank): {"host": "one", "cores": 4 + rank} for rank in range(4)}
    (path / MACHINES).write_text(json.dumps({"ranks": ranks}))
    run = FinishedRun.read(path)
    assert run.prediction is not None
    assert (run.prediction.step, run.links, run.cores, run.crowded) == (0.5, LinkRates(0.001, 2e6, 3e6), 4, True)
    ranks["3"]["host"] = "another"
    (path / MACHINES).write_text(json.dumps({"ranks": ranks}))
    assert not FinishedRun.read(path).crowded


def test_code_that_the_run_names_is_told(tmp_path: Path) -> None:
    assert FinishedRun.read(make_run(tmp_path / "plain")).code is None
    assert FinishedRun.read(make_run(tmp_path / "own", task="mine.py:Mine")).code == "--task mine.py:Mine"


def test_a_directory_without_a_run_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(ConfigurationError, match=f"--from {path} holds no run: it has no config.json"):
            FinishedRun.read(path)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"plan": None}, "is damaged: config.json cannot be used"),
        ({"plan": {"tensors": [["w", [3]]], "groups": []}}, "groups cover 0 of 3"),
        ({"config": []}, "is damaged"),
        ({"scheme": {"name": "qsgd"}}, "a recorded scheme has the fields"),
        ({"parts": [[0]]}, "is damaged"),
        ({"workers": "three"}, "is damaged"),
        ({"parts": [[0, 0]]}, "it is of 0 workers"),
        ({"links": {"round_trip": 0.1, "up": 0, "down": 1e9}}, "no link carries 0.0 bytes per second up"),
        ({"links": {"up": 1e9, "down": 1e9}}, "'round_trip' is missing"),
        ({"prediction": {"step": -1, "workers": 3, "source": "", "binds": ""}}, "cannot be predicted"),
    ],
)
def test_a_damaged_config_is_one_line(more: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=problem) as told:
        FinishedRun.read(make_run(tmp_path / "run", more=more))
    assert str(told.value).startswith(f"--from {tmp_path / 'run'} is damaged: {CONFIG}")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": None}, {"seconds": {"step": 1.0}}, {"uplink_bytes": "many"}, {"downlink_bytes": -1}, {"contributing": None},
        {"seconds": {**record(1)["seconds"], "step": 0.0}}, {"seconds": {**record(1)["seconds"], "decode": None}},
    ],
)  # fmt: skip
def test_a_damaged_record_is_named_by_its_step(changes: dict[str, Any], tmp_path: Path) -> None:
    records = [record(step) for step in range(1, 20)] + [record(20, **changes)]
    path = make_run(tmp_path / "run", records)
    if changes == {"contributing": None}:  # a step in which not all workers are told to have taken part
        assert FinishedRun.read(path).steps == 17
        return
    with pytest.raises(ConfigurationError, match=r"is damaged: the record of step 20 in metrics\.jsonl cannot be used"):
        FinishedRun.read(path)


def test_a_line_that_is_no_record_is_named_by_its_number(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run")
    (path / METRICS).write_text((path / METRICS).read_text() + "nothing\n")
    with pytest.raises(ConfigurationError, match="is damaged: line 15 of"):
        FinishedRun.read(path)


def test_a_run_is_too_short_below_ten_steps_after_the_first_two(tmp_path: Path) -> None:
    assert FinishedRun.read(make_run(tmp_path / "long", [record(step) for step in range(1, 13)])).steps == FEWEST == 10
    path = make_run(tmp_path / "short", [record(step) for step in range(1, 12)])
    with pytest.raises(ConfigurationError, match=r"9 steps of all 3 workers are recorded after the first 2.*needs 10"):
        FinishedRun.read(path)
    (path / METRICS).unlink()
    with pytest.raises(ConfigurationError, match="0 steps of all 3 workers"):
        FinishedRun.read(path)


def test_rounds_that_close_without_the_slowest_worker_are_refused(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", consistency="kofn", num_aggregate=2)
    with pytest.raises(ConfigurationError, match="rounds of this run closed without the slowest workers"):
        FinishedRun.read(path)


def test_a_last_step_that_no_worker_reported_has_no_figures(tmp_path: Path) -> None:
    """Check that a last step without reports is left out: a job ends with its last version, and reports of it may come too
    late for its record.
    """
    unreported = {**record(1)["seconds"], "forward_backward": 0.0, "encode": 0.0, "wait": 0.0}
    records = [record(step) for step in range(1, 14)] + [record(14, seconds=unreported)]
    assert FinishedRun.read(make_run(tmp_path / "run", records)).steps == 11


def test_a_run_has_the_roles_of_its_topology(tmp_path: Path) -> None:
    assert FinishedRun.read(make_run(tmp_path / "run", topology="sharded:servers=3")).layout == Layout(3, 0, 2)
