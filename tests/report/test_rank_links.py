"""Bytes by rank in a report add up to those of the run, both if the ranks have counted them and if they are computed from
the routes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psnode.cli import main
from psnode.report.page import render
from psnode.report.rank_links import RankLinks, rank_links
from psnode.report.run import Run, read
from tests.report.conftest import CONFIG, record, write_run

STAR = CONFIG["config"] | {"topology": "star"}


def ways(links: RankLinks | None) -> dict[int, tuple[int, int, int, int]]:
    """Return by rank the bytes of (gradients in, weights in, gradients out, weights out)."""
    assert links is not None
    return {each.rank: (each.gradients_in, each.weights_in, each.gradients_out, each.weights_out) for each in links.loads}


def totals(links: RankLinks | None) -> list[int]:
    return [sum(column) for column in zip(*ways(links).values(), strict=True)]


def without_counts(path: Path) -> Run:
    """Return the run without its counts of bytes by rank, as an earlier version of psnode would have left it."""
    summary = json.loads((path / "summary.json").read_text())
    del summary["link_bytes"]
    (path / "summary.json").write_text(json.dumps(summary))
    return read(path)


@pytest.mark.parametrize("topology", ["star", "mesh", "gather", "star:down=tree"])
def test_bytes_by_rank_of_a_job_add_up_to_those_of_its_records(tmp_path: Path, topology: str) -> None:
    path = tmp_path / "run"
    train = ["train", "--local", "3", "--network", "FC", "--scheme", "qsgd", "--batch-size", "8", "--max-steps", "3"]
    train += ["--topology", topology, "--group-by", "layer", "--threads", "1", "--quiet", "--no-tensorboard"]
    train += ["--train-dir", str(path)]
    assert main(train) == 0
    run = read(path)
    up, down = run.steps.sum("uplink_bytes"), run.steps.sum("downlink_bytes")
    counted = rank_links(run)
    assert counted is not None and counted.is_counted and counted.steps == 3
    assert totals(counted) == [up, down, up, down] and up > 0
    assert f"--topology {topology}; counted by the ranks in 3 steps" in render([run]).decode()
    shared = rank_links(bare := without_counts(path))
    assert shared is not None and not shared.is_counted
    assert totals(shared) == [up, down, up, down]
    assert "by the routes" in render([bare]).decode()
    for rank, found in ways(shared).items():  # qsgd's payloads are in proportion to coordinates, but for headers
        assert found == pytest.approx(ways(counted)[rank], rel=0.05)


def test_bytes_of_a_star_without_counts_are_those_of_the_workers_in_equal_parts(tmp_path: Path) -> None:
    links = rank_links(read(write_run(tmp_path / "run", [record(k) for k in (1, 2)], config=STAR)))
    assert ways(links) == {0: (600, 0, 0, 200), 1: (0, 100, 300, 0), 2: (0, 100, 300, 0)}


def test_odd_bytes_are_shared_out_whole(tmp_path: Path) -> None:
    links = rank_links(read(write_run(tmp_path / "run", [record(1, uplink_bytes=7, downlink_bytes=3)], config=STAR)))
    assert totals(links) == [7, 3, 7, 3]


COUNTS: dict[str, Any] = {
    "steps": 2,
    "ranks": {
        "0": {"gradients_out": 0, "weights_out": 4000, "gradients_in": 2000, "weights_in": 0},
        "1": {"gradients_out": 1000, "weights_out": 0, "gradients_in": 0, "weights_in": 2000},
        "2": {"gradients_out": 1000, "weights_out": 0, "gradients_in": 0, "weights_in": 2000},
    },
}


def with_counts(path: Path, counts: object) -> Run:
    write_run(path, [record(1)], config=STAR)
    (path / "summary.json").write_text(json.dumps({"stop_reason": "completed", "exit_code": 0, "link_bytes": counts}))
    return read(path)


def test_the_page_has_the_bytes_of_a_step_and_ranks_alike_share_a_row(tmp_path: Path) -> None:
    words = render([with_counts(tmp_path / "run", COUNTS)]).decode()
    assert "The busiest link is that of the master: 1.00 kB in and 2.00 kB out." in words
    assert "ranks 1-2</th><td" in words and "the master</th><td" in words


HOSTILE = {
    "text": "<script>",
    "no ranks": {"steps": 2, "ranks": {}},
    "no steps": COUNTS | {"steps": 0},
    "steps as text": COUNTS | {"steps": "9"},
    "a name": COUNTS | {"ranks": {"master": COUNTS["ranks"]["0"]}},
    "less than nothing": COUNTS | {"ranks": {"0": COUNTS["ranks"]["0"] | {"weights_in": -1}}},
    "a rank without a way": COUNTS | {"ranks": {"0": {"gradients_in": 1}}},
    "a list": COUNTS | {"ranks": [1, 2]},
}


@pytest.mark.parametrize("counts", HOSTILE.values(), ids=HOSTILE)
def test_counts_that_cannot_be_true_are_not_shown(tmp_path: Path, counts: object) -> None:
    links = rank_links(with_counts(tmp_path / "run", counts))
    assert links is not None and not links.is_counted


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "changes",
    [
        {"config": CONFIG["config"]}, {"config": STAR | {"topology": "donut"}}, {"config": STAR | {"topology": ["star"]}},
        {"config": STAR, "workers": 10**15}, {"config": STAR | {"topology": "gather"}, "workers": 100_000},
        {"config": STAR | {"spares": 10**15}}, {"config": STAR | {"spares": -1}}, {"config": STAR, "workers": 0},
        {"config": STAR | {"topology": "star7"}}, {"config": STAR | {"topology": "sharded:servers="}},
        {"config": STAR | {"topology": "sharded:servers=999999999"}}, {"config": STAR | {"resume": True}},
    ],
)  # fmt: skip
def test_a_run_that_tells_too_little_or_too_much_has_no_table(tmp_path: Path, changes: dict[str, Any]) -> None:
    run = read(write_run(tmp_path / "run", [record(1)], **changes))
    assert rank_links(run) is None
    assert "by the routes" not in render([run]).decode()
