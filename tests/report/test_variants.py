"""Runs that differ only by their seeds are one line of a report, with a band and a standard error. Long names are cut."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnode.cli import main
from psnode.report.curves import figures
from psnode.report.page import render
from psnode.report.run import read_all
from psnode.report.run_names import common_name, shortened
from psnode.report.steps import columns_of, mean_curve
from psnode.report.variants import variants
from tests.report.conftest import CONFIG, lines, record, write_run


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a completed run of five steps and an evaluation; the loss of step k is `loss` / k."""

    def made(name: str, seed: int | None, loss: float = 1.0, **changes: Any) -> Path:
        config = CONFIG["config"] | ({} if seed is None else {"seed": seed}) | {"train_dir": name} | changes.pop("config", {})
        path = write_run(tmp_path / name, [record(k, loss=loss / k) for k in range(1, 6)], config=config, **changes)
        lines(path / "evaluations.jsonl", [{"step": 5, "loss": 2 * loss, "top1": loss / 10}])
        (path / "summary.json").write_text(json.dumps({"stop_reason": "completed", "exit_code": 0}))
        return path

    return made


def test_runs_that_differ_by_seed_alone_are_one_line_with_their_mean_and_extremes(make: Callable[..., Path]) -> None:
    losses = (1.0, 2.0, 6.0)
    runs = read_all([make(f"small-{seed}", seed, loss) for seed, loss in enumerate(losses, 1)])
    [variant] = variants(runs)
    assert (variant.name, variant.seeds, list(variant.runs)) == ("small-* (3 seeds)", "1, 2, 3", runs)
    assert variant.mean(lambda run: run.last("loss")) == pytest.approx(3 / 5)
    error = statistics.stdev(losses) / 3**0.5
    assert variant.told(lambda run: run.best_loss, "{:.3f}".format) == f"6.000 ± {2 * error:.3f}"
    loss = next(figure for figure in figures([variant]) if "Training loss" in "".join(figure.itertext()))
    chart = next(loss.iter("svg"))
    [line] = chart.iter("polyline")
    [band] = chart.iter("polygon")
    heights = [float(pair.split(",")[1]) for pair in band.get("points", "").split()]
    upper, lower = heights[:5], heights[:4:-1]
    middle = [float(pair.split(",")[1]) for pair in line.get("points", "").split()]
    low, high, start, stop = (float(word) for word in chart.get("data-y", "").split()[:4])
    at = [start + (value - low) / (high - low) * (stop - start) for value in (3 / k for k in range(1, 6))]
    assert middle == pytest.approx(at, abs=0.06)
    assert all(top < mid < bottom for top, mid, bottom in zip(upper, middle, lower, strict=True))


def test_runs_that_differ_otherwise_or_did_not_complete_are_lines_of_their_own(make: Callable[..., Path]) -> None:
    paths = [make("a-1", 1), make("a-2", 2), make("a-3", 3), make("b-1", 1, config={"lr": 0.5}), make("c-4", 4, workers=3)]
    (paths[2] / "summary.json").write_text(json.dumps({"stop_reason": "signal", "exit_code": 75}))
    assert [each.name for each in variants(read_all(paths))] == ["a-* (2 seeds)", "a-3", "b-1", "c-4"]
    assert [each.name for each in variants(read_all(paths), each=True)] == ["a-1", "a-2", "a-3", "b-1", "c-4"]


@pytest.mark.parametrize("seeds", [(1, 1), (None, None), (1, 2, 2)])
def test_runs_with_equal_or_unknown_seeds_differ_by_something_else(make: Callable[..., Path], seeds: tuple[int | None]) -> None:
    runs = read_all([make(f"run{k}", seed) for k, seed in enumerate(seeds)])
    assert [len(each.runs) for each in variants(runs)] == [1] * len(seeds)


def test_variants_whose_runs_have_the_same_in_common_have_names_of_their_own(make: Callable[..., Path]) -> None:
    rates = {1: 0.1, 2: 0.1, 3: 0.1, 4: 0.2, 5: 0.2}
    runs = read_all([make(f"r{k}", k, config={"lr": lr}) for k, lr in rates.items()])
    assert [each.name for each in variants(runs)] == ["r1 and 2 other seeds", "r4 and 1 other seed"]


def test_the_page_tells_of_several_seeds_and_has_each_run(
    make: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [make(f"small-{seed}", seed, loss) for seed, loss in ((1, 1.0), (2, 3.0))]
    page = render(read_all(paths)).decode()
    for words in ("from the lowest to the highest", "Each of the 2 runs", "small-1", "small-2", "0.4000", "20.00 %", "4.0000"):
        assert words in page, words
    output = tmp_path / "page.html"
    assert main(["report", *map(str, paths), "--each", "-o", str(output)]) == 0
    assert "Each of the" not in output.read_text()
    capsys.readouterr()


@given(st.lists(st.lists(st.floats(-100, 100), min_size=0, max_size=40), min_size=1, max_size=4), st.integers(1, 9))
def test_the_mean_of_runs_is_that_of_the_steps_that_all_have(values: list[list[float]], most: int) -> None:
    tables = [columns_of([record(k, loss=value) for k, value in enumerate(run, 1)]) for run in values]
    curve = mean_curve(tables, "loss", most)
    told = [run for run in values if run]
    common = min(map(len, told), default=0)
    assert curve.steps.size == min(most, common)
    first = 0
    for last, mean, low, high in zip(*curve, strict=True):
        means = [float(np.mean(run[first : int(last)])) for run in told]
        assert (low, high) == (pytest.approx(min(means)), pytest.approx(max(means)))
        assert mean == pytest.approx(sum(means) / len(means), abs=1e-9)
        first = int(last)
    assert first == common


@given(st.lists(st.text("ab-1", max_size=60), unique=True, max_size=6), st.integers(3, 30))
def test_cut_names_are_short_and_stay_unlike(names: list[str], most: int) -> None:
    cut = shortened(names, most)
    assert len(set(cut)) == len(names)
    for name, short in zip(names, cut, strict=True):
        ahead, dots, behind = short.partition("…")
        assert name.startswith(ahead) and name.endswith(behind) and (bool(dots) or short == name)
        assert len(short) <= len(name)
    if len(names) == 1:
        assert len(cut[0]) <= max(most, 3)


@pytest.mark.parametrize(
    ("names", "common"),
    [
        (["dense-1", "dense-2"], "dense-*"),
        (["lr-0.1-1", "lr-0.1-12"], "lr-0.1-*"),
        (["lr-0.1-11", "lr-0.1-12"], "lr-0.1-*"),
        (["a/seed1/run", "a/seed2/run"], "a/seed*/run"),
        (["first", "second"], "*"),
        (["aa", "aaa"], "aa*"),
    ],
)
def test_the_common_name_has_an_asterisk_where_names_differ(names: list[str], common: str) -> None:
    assert common_name(names) == common
