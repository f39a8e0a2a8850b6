"""Readable plots: one legend, names only on the Pareto front, no overlapping names, and every point inside."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnode.bench import plots
from psnode.cli import main

pytest.importorskip("matplotlib")


def rows(count: int) -> list[dict[str, Any]]:
    """Return `count` rows in seven families, then a failed row and an exact one.

    The error is exp(-bits) for rows with even numbers, and 1.5 to 2.5 times as large for rows with odd ones.
    """
    draws = np.random.default_rng(3)
    made = []
    for k in range(count):
        bits = float(0.03 * 1.12**k)
        error = float(np.exp(-bits)) * (1.0 if k % 2 == 0 else 1.5 + draws.random())
        spec = f"family{k % 7}:parameter={k},another=1"
        made.append({"spec": spec, "bits": bits, "error": error, "shrunk": error, "unbiased": k % 3 == 0})
    return [*made, {"spec": "broken", "failed": "why"}, {"spec": "exact", "bits": 32.0, "error": 0.0, "shrunk": 0.0}]


def result(count: int = 45) -> dict[str, Any]:
    curve = {"bits": [0.1, 1.0, 5.0], "errors": [0.9, 0.25, 0.001]}
    source = {"size": 1000, "zeros": 0.0, "curve": curve, "cached": {"median": 1.0}, "rows": rows(count)}
    return {"cpu": "a processor", "cores": 2, "date": "2026-11-23T10:00:00", "sources": {"one": source, "two": source}}


def test_the_front_is_what_nothing_beats() -> None:
    shown = [row for row in rows(45) if "failed" not in row and row["error"] > 0 and row["bits"] <= 10]
    beaten = [any(a["bits"] <= b["bits"] and a["shrunk"] < b["shrunk"] for a in shown) for b in shown]
    assert plots.front(rows(45)) == [row for row, worse in zip(shown, beaten, strict=True) if not worse]


def test_names_are_of_the_front_and_none_covers_another_or_a_point() -> None:
    figure = plots.figure_of(result(30))
    figure.draw_without_rendering()
    front = {row["spec"] for row in plots.front(rows(30))}
    assert len(figure.legends) == 1
    assert not any(panel.get_legend() for panel in figure.axes)
    for panel in figure.axes:
        names = {text.get_text(): text.get_bbox_patch() for text in panel.texts}
        assert set(names) <= front
        assert len(names) >= 5
        patches = [patch.get_window_extent() for patch in names.values() if patch is not None]
        assert len(patches) == len(names)
        assert not [pair for pair in itertools.combinations(patches, 2) if pair[0].overlaps(pair[1])]
        assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
        assert_all_points_inside(panel)


def assert_all_points_inside(panel: Any) -> None:
    (left, right), (bottom, top) = sorted(panel.get_xlim()), sorted(panel.get_ylim())
    for line in panel.lines:
        if line.get_marker() != "None":
            for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
                assert left <= x <= right and bottom <= y <= top


@pytest.mark.parametrize("content", ["", "{", "[]", '{"sources": {"a": {"rows": [{}]}}}', '{"sources": 3}'])
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    file = tmp_path / "found.json"
    file.write_text(content)
    assert main(["bench", "codecs", "--from", str(file)]) == 2
    assert "holds no such result" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["bench", "codecs", "--codec", "fp16"], ["bench", "peers", "--evaluate-every", "5"]])
def test_a_lack_of_matplotlib_is_told_before_anything_is_measured(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([*command, "--json", str(tmp_path / "result.json"), "--plot", str(tmp_path / "figure.png")]) == 2
    assert "--plot needs the package matplotlib" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
