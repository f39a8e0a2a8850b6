"""The plot of `python -m studies.fidelity` is readable: one legend, every point inside."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from studies import fidelity_plot
from studies.fidelity import STUDY
from studies.harness import main
from tests.bench.test_plots import assert_all_points_inside

pytest.importorskip("matplotlib")


def fidelity() -> dict[str, Any]:
    specs = ("qsgd:levels=3", "terngrad", "dithered:step=1", "lss:bits=2", "topk:ratio=0.1", "polar:rate=1")
    made = [{"spec": spec, "bits": 0.4 + 0.5 * k, "decibels": -0.3 * k, "polar": 1.0, "more": 1.0, "shrunk": 0.9}
            for k, spec in enumerate(specs)]  # fmt: skip
    rows = [{"source": "gaussian", **row} for row in made]
    about = {"date": "2026-11-23", "cpu": "a processor", "cores": 2}
    return {**about, "sources": {"gaussian": {"size": 1000, "zeros": 0.0}}, "rows": rows}


def test_both_halves_of_the_fidelity_plot_show_all_points_under_one_legend() -> None:
    figure = fidelity_plot.figure_of(fidelity())
    figure.draw_without_rendering()
    assert len(figure.legends) == 1
    for panel in figure.axes:
        assert_all_points_inside(panel)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[2:] == ["qsgd", "terngrad", "dithered", "lss", "topk", "polar"]


def test_codecs_from_outside_are_drawn_and_what_is_beyond_the_axis_is_named() -> None:
    result = fidelity()
    result["rows"] += [
        {"source": "gaussian", "spec": "mine:keep=2", "bits": 0.75, "decibels": -0.9, "polar": 1.0, "more": 1.0, "shrunk": 0.9},
        {"source": "gaussian", "spec": "mine:keep=9", "bits": 5.0, "decibels": -9.0, "polar": 1.0, "more": 1.0, "shrunk": 0.9},
        {"source": "gaussian", "spec": "nuqsgd", "bits": 0.5, "decibels": -0.5, "polar": 1.0, "more": 1.0, "shrunk": 0.9},
    ]
    figure = fidelity_plot.figure_of(result)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[-1] == "mine" and "nuqsgd" not in labels
    assert figure.axes[0].get_title() == "above 3.4 bits: mine:keep=9"


def test_an_earlier_result_is_drawn_without_measuring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "found.json", tmp_path / "plot.png"
    file.write_text(json.dumps(fidelity()))
    assert main(STUDY, ["--from", str(file), "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "1,000 values" in capsys.readouterr().out


def test_a_lack_of_matplotlib_is_told_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(STUDY, ["--json", str(tmp_path / "result.json"), "--plot", str(tmp_path / "figure.png")]) == 2
    assert "--plot needs the package matplotlib" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
