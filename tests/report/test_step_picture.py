"""The picture of a predicted step above a measured one: lanes, positions of bars, and steps of hostile runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest

from psnode.cli import main
from psnode.errors import ConfigurationError
from psnode.plans.plan_file import PlanFile
from psnode.plans.prediction import PredictedSpan, Prediction
from psnode.report.critical import CriticalPath, WorkSpan
from psnode.report.page import render
from psnode.report.run import read
from psnode.report.step_picture import WorkBar, measured_panel, picture, predicted_panel, save_svg
from tests.jobs.planning.refitting.run_cases import profile
from tests.report.conftest import record, write_run

SPANS = (
    PredictedSpan("out", 0, 0.0, 0.05), PredictedSpan("apply", 0, 0.05, 0.1), PredictedSpan("passes", -1, 0.1, 0.25),
    PredictedSpan("encode", 0, 0.2, 0.3), PredictedSpan("in", 0, 0.3, 0.35), PredictedSpan("decode", 0, 0.35, 0.45),
    PredictedSpan("decode", 1, 0.4, 0.45), PredictedSpan("update", 0, 0.45, 0.5),
)  # fmt: skip
PREDICTION = Prediction(0.5, 2, "psnode plan, 1mbit", "link", SPANS)


def worker(rank: int, name: str, start: float, stop: float) -> WorkSpan:
    return WorkSpan(rank, rank, name, start, stop, {})


MEASURED = [
    worker(1, "forward_backward", 10.0, 10.5), worker(2, "wait", 9.9, 10.2), worker(2, "forward_backward", 10.2, 10.8),
    worker(2, "drain", 10.8, 10.85), worker(2, "snapshot", 10.85, 10.9), worker(0, "decode", 10.8, 10.9),
    worker(0, "finish", 10.9, 10.95), worker(0, "downlink", 10.95, 11.2),
]  # fmt: skip
PATH = CriticalPath(7, 10.0, 11.0, 2, ())


def bars(drawing: Element) -> list[tuple[str, float, float, float]]:
    """Return the style, left edge, right edge and top edge of every bar, without the legend's."""
    found = []
    for rect in drawing.iter("rect"):
        if rect.find("title") is not None:
            x, y, width = (float(rect.get(name) or "nan") for name in ("x", "y", "width"))
            found.append((rect.get("class") or "", x, x + width, y))
    return found


def test_the_work_of_a_prediction_lies_in_lanes_that_overlap_nowhere() -> None:
    panel = predicted_panel(PREDICTION)
    assert panel.title == "predicted: 500 ms, psnode plan, 1mbit"
    assert [name for name, _ in panel.lanes] == ["worker", "coding", "gradients", "updates", "updates", "weights"]
    styles = [[bar.style for bar in row] for _, row in panel.lanes]
    assert styles == [["apply", "forward_backward"], ["encode"], ["in"], ["decode", "update"], ["decode"], ["out"]]
    assert panel.lanes[4][1] == [WorkBar("decode", 0.4, 0.45, "decoding, of all workers, group 1")]


def test_frames_of_many_connections_hide_no_updates() -> None:
    """Check that updates still have a lane if fifteen frames overlap in each direction, as in a mesh of sixteen workers."""
    frames = [PredictedSpan(kind, group, 0.01 * group, 0.3) for kind in ("in", "out") for group in range(15)]
    panel = predicted_panel(Prediction(0.5, 16, "psnode plan", "link", (*frames, PredictedSpan("update", 0, 0.45, 0.5))))
    assert [name for name, _ in panel.lanes] == ["gradients"] * 3 + ["updates"] + ["weights"] * 3


def test_the_measured_lanes_are_those_of_the_last_worker_and_the_master_from_zero() -> None:
    panel = measured_panel(PATH, MEASURED)
    assert (panel.title, panel.seconds) == ("measured: 1,000 ms, step 7, of median duration", 1.0)
    assert [name for name, _ in panel.lanes] == ["worker 2", "master"]
    times = [[(bar.style, round(bar.begin, 6), round(bar.end, 6)) for bar in row] for _, row in panel.lanes]
    assert times[0] == [("wait", 0.0, 0.2), ("forward_backward", 0.2, 0.8), ("encode", 0.8, 0.85), ("rest", 0.85, 0.9)]
    assert times[1] == [("decode", 0.8, 0.9), ("update", 0.9, 0.95), ("downlink", 0.95, 1.0)]


def test_both_steps_have_one_scale() -> None:
    """Check positions: the measured second is 840 pixels wide, from 90 to 930, so that the predicted half a second ends in
    the middle, at 510.
    """
    drawing = picture("both", [predicted_panel(PREDICTION), measured_panel(PATH, MEASURED)])
    found = bars(drawing)
    assert [each[1:3] for each in found if each[0] == "span update"] == [
        pytest.approx((468.0, 510.0)), pytest.approx((846.0, 888.0)),
    ]  # fmt: skip
    assert [each[1:3] for each in found if each[0] == "span forward_backward"] == [
        pytest.approx((174.0, 300.0)), pytest.approx((258.0, 762.0)),
    ]  # fmt: skip
    rows = [each[3] for each in found]
    assert rows == sorted(rows)
    ticks = [text.text for text in drawing.iter("text") if text.get("text-anchor") == "middle"]
    assert ticks == ["0", "200", "400", "600", "800", "1,000", "milliseconds since the version before"]
    legend = [text.text for text in drawing.iter("text") if text.get("text-anchor") == "start"]
    assert legend[:3] == ["passes", "loading weights", "coding"]
    assert {"gradients on links", "weights on links", "coding weights", "waiting"} <= set(legend)


def with_timeline(path: Path, prediction: Any) -> Path:
    write_run(path, [record(1)], prediction=prediction)
    events = [
        {"name": name, "ph": "X", "pid": 0, "tid": 1, "ts": 1e6 * start, "dur": 1e5, "args": {"version": version}}
        for version, start in ((1, 1.0), (2, 2.0), (3, 3.0))
        for name in ("update", "downlink")
    ]
    (path / "timeline.json").write_text(json.dumps({"traceEvents": events}))
    return path


def test_a_report_draws_them_for_a_run_with_spans_and_a_timeline(tmp_path: Path) -> None:
    content = render([read(with_timeline(tmp_path / "run", PREDICTION.to_dict()))]).decode()
    assert "predicted: 500 ms, psnode plan, 1mbit" in content
    assert "measured: 1,000 ms, step 3, of median duration" in content
    plain = Prediction(0.5, 2, "trial steps").to_dict()
    assert "predicted: " not in render([read(with_timeline(tmp_path / "plain", plain))]).decode()


@pytest.mark.parametrize(
    ("prediction", "problem"),
    [
        ([1, 2], True), ({"step": "long"}, True), ({**PREDICTION.to_dict(), "spans": [["</svg><script>", 0, 0, 1]]}, True),
        ({**PREDICTION.to_dict(), "step": 1e308, "spans": [["in", 10**30, 0, 1e308]]}, False),
        ({**PREDICTION.to_dict(), "source": "</svg><script>alert(1)</script>"}, False),
    ],
)  # fmt: skip
def test_predictions_of_hostile_runs_break_no_page(prediction: Any, problem: bool, tmp_path: Path) -> None:
    run = read(with_timeline(tmp_path / "run", prediction))
    content = render([run]).decode()
    assert any("config.json cannot be used" in line for line in run.problems) is problem
    assert content.count("<script") == 1
    assert ("predicted: " in content) is not problem


def test_the_command_draws_the_step_of_the_plan_that_it_saves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile().save(tmp_path / "profile.json")
    words = ["plan", "-n", "3", "--profile", str(tmp_path / "profile.json"), "--plot", str(tmp_path / "new" / "step.svg")]
    assert main([*words, "--rate", "1mbit", "--save-plan", str(tmp_path / "plan.json")]) == 0
    drawing = ElementTree.parse(tmp_path / "new" / "step.svg").getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert drawing.tag == f"{name}svg"
    found = PlanFile.load(tmp_path / "plan.json").prediction
    assert found is not None
    styles = [rect.get("class") for rect in drawing.iter(f"{name}rect") if rect.find(f"{name}title") is not None]
    assert len(styles) == len(found.spans)
    assert main([*words, "--rate", "1mbit", "--rate", "1gbit"]) == 2
    assert "--plot needs one --rate" in capsys.readouterr().err


def test_a_picture_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="too many parts to be drawn: leave --plot out"):
        save_svg(tmp_path / "step.svg", Prediction(0.5, 2, "a guess"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot be written: .*; name another file with --plot"):
        save_svg(tmp_path / "file" / "step.svg", PREDICTION)
