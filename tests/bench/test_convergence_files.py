"""Files of the convergence table: means and errors equal SciPy's, the front equals that of brute force, and the files can be
read back.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from psnode import cli
from psnode.bench.convergence.accuracy_curves import CurvePoint, front, mean_curve
from psnode.bench.convergence.curve_plot import curves_figure, draw_curves
from psnode.bench.convergence.equal_steps import named_runs
from psnode.bench.convergence.result_tables import csv_table, edge_notes, latex
from psnode.config.amounts import rate_of
from psnode.errors import ConfigurationError

MBIT = 1e6


def row(name: str, *curves: list[CurvePoint], tried: dict[str, float] | None = None, rate: float | None = MBIT) -> dict[str, Any]:
    """Return the row of a contender, one curve per seed."""
    last = [curve[-1] for curve in curves]
    means = mean_curve(curves, rate)
    return {
        "run": f"topk --name {name}", "name": name, "seeds": list(range(1, len(curves) + 1)), "lr": 0.1, "ratio": 12.5,
        "top1": means[-1]["top1"], "standard_error": means[-1]["top1_error"], "loss": means[-1]["loss"],
        "loss_error": means[-1]["loss_error"], "uplink_bytes": last[0].nbytes, "downlink_bytes": 2500.0,
        "tried": tried or {"0.1": 0.5}, "curve": means, "curves": [[point.as_dict(rate) for point in curve] for curve in curves],
    }  # fmt: skip


def points(*accuracies: float, nbytes: float = 1e6) -> list[CurvePoint]:
    return [
        CurvePoint(10 * n, 1 - top1, top1, nbytes=n * nbytes, link_bytes=2 * n * nbytes, seconds=0.5 * n, computing=0.25 * n)
        for n, top1 in enumerate(accuracies, 1)
    ]


def result(*rows: dict[str, Any], rate: str | None = "1mbit") -> dict[str, Any]:
    return {"date": "2026-01-02T03:04", "cpu": "a 100 % CPU", "common": "--lr 1", "workers": 2, "rate": rate, "rows": list(rows)}


def test_a_mean_curve_has_the_means_and_standard_errors_of_its_seeds() -> None:
    accuracies = [(0.5, 0.9), (0.6, 0.7), (0.3, 0.8)]
    first, last = mean_curve([points(*each) for each in accuracies], MBIT)
    for found, values in zip((first, last), zip(*accuracies, strict=True), strict=True):
        assert found["top1"] == pytest.approx(sum(values) / 3)
        assert found["top1_error"] == pytest.approx(stats.sem(values))
        assert found["loss_error"] == pytest.approx(stats.sem([1 - value for value in values]))
    assert (last["step"], last["nbytes"], last["seconds"]) == (20, 2e6, 1.0)
    assert last["at_rate"] == pytest.approx(0.5 + 8 * 4)  # 4 MB at 1 Mbit/s
    assert mean_curve([points(0.5)], None)[0]["at_rate"] is None


def test_only_steps_that_every_seed_evaluated_are_in_a_mean_curve() -> None:
    assert [point["step"] for point in mean_curve([points(0.1, 0.2, 0.3), points(0.1, 0.2)], None)] == [10, 20]


@pytest.mark.parametrize(("text", "bits"), [("100mbit", 1e8), ("1gbit", 1e9), ("1.5kbit", 1500.0)])
def test_rates_are_in_bits_per_second(text: str, bits: float) -> None:
    assert rate_of(text) == bits


@pytest.mark.parametrize("text", ["100", "0mbit", "fast", "1mbit,80ms"])
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--rate must be a number above 0 with kbit, mbit or gbit"):
        rate_of(text)


def test_the_front_is_what_nothing_beats_in_both() -> None:
    rng = random.Random(3)
    rows = [row(str(n), points(rng.random(), nbytes=rng.random())) for n in range(30)]

    def beats(one: dict[str, Any], other: dict[str, Any]) -> bool:
        return bool(one["top1"] >= other["top1"] and one["curve"][-1]["nbytes"] <= other["curve"][-1]["nbytes"])

    undefeated = {each["name"] for each in rows if not any(beats(other, each) for other in rows if other is not each)}
    assert {each["name"] for each in front(rows)} == undefeated
    assert len(undefeated) > 1


def test_runs_have_names() -> None:
    texts = ["top-k 1 %=topk:ratio=0.01 --lr 0.1", "topk:ratio=0.01", "dense --codec=topk", "ours = a.py:Own:k=3 --lr=1", "qsgd"]
    assert named_runs(texts) == {
        "top-k 1 %": "topk:ratio=0.01 --lr 0.1",
        "topk:ratio=0.01": "topk:ratio=0.01",
        "dense --codec=topk": "dense --codec=topk",
        "ours": "a.py:Own:k=3 --lr=1",
        "qsgd": "qsgd",
    }


@pytest.mark.parametrize(("texts", "told"), [(["a=topk", "a=qsgd"], "is given twice"), (["a="], "names no scheme")])
def test_names_that_mean_nothing_are_refused(texts: list[str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        named_runs(texts)


@pytest.mark.parametrize(
    ("lr", "tried", "told"),
    [
        (0.1, ["0.1"], []),
        (0.1, ["0.05", "0.1", "0.2"], []),
        (0.1, ["0.1", "0.025"], ["ours: 0.1 is the highest learning rate tried: add --lr 0.4"]),
        (0.1, ["0.3", "0.1"], ["ours: 0.1 is the lowest learning rate tried: add --lr 0.03"]),
    ],
)
def test_a_best_rate_at_the_edge_is_told_with_the_next_to_try(lr: float, tried: list[str], told: list[str]) -> None:
    found = row("ours", points(0.5), tried=dict.fromkeys(tried, 0.5)) | {"lr": lr}
    assert list(edge_notes(result(found))) == told


def test_the_csv_has_a_line_for_each_evaluation_of_each_seed() -> None:
    lines = list(csv.DictReader(io.StringIO(csv_table(result(row('a "b", c', points(0.5, 0.6), points(0.7, 0.8)))))))
    assert [(line["name"], line["seed"], line["step"], line["top1"]) for line in lines] == [
        ('a "b", c', seed, step, top1)
        for (seed, step), top1 in zip(itertools.product("12", ("10", "20")), ("0.5", "0.6", "0.7", "0.8"), strict=True)
    ]
    assert float(lines[1]["bytes"]) == 2e6
    assert float(lines[1]["seconds_at_rate"]) == pytest.approx(32.5)


def test_the_latex_table_has_means_and_errors_and_escapes_names() -> None:
    text = latex(result(row("top_k 1 %", points(0.5, nbytes=1500.0), points(0.7, nbytes=1500.0))))
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert body[0] == r"\begin{tabular}{lrrrrr}"
    assert body[-1] == r"\end{tabular}"
    assert r"top\_k 1 \% & 0.1 & $60.00 \pm 10.00$ & 1.5 & 2.5 & 12.5 \\" in body
    assert all(line.count("&") == 5 for line in body if line.endswith(r"\\"))


def test_a_table_without_accuracies_has_losses() -> None:
    found = row("a", [point._replace(top1=None, loss=0.25) for point in points(0.5)])
    assert "a & 0.1 & $0.2500$ &" in latex(result(found))
    assert " & loss & " in latex(result(found))


@pytest.mark.parametrize(("rate", "panels"), [("1mbit", 4), (None, 3)])
def test_the_plot_has_the_mean_curves_over_steps_bytes_and_seconds(rate: str | None, panels: int) -> None:
    pytest.importorskip("matplotlib")
    bits = None if rate is None else MBIT
    rows = [row("a", points(0.5, 0.9), points(0.7, 0.9), rate=bits), row("b", points(0.3, 0.4, nbytes=1e5), rate=bits)]
    figure = curves_figure(result(*rows, rate=rate))
    assert len(figure.axes) == panels
    drawn = [[line.get_xydata().tolist() for line in panel.lines[:2]] for panel in figure.axes]  # type: ignore[union-attr]
    assert drawn[0] == [[[10, pytest.approx(60)], [20, 90]], [[10, 30], [20, 40]]]
    assert drawn[1][1] == [[pytest.approx(0.1), 30], [pytest.approx(0.2), 40]]
    if rate:
        assert drawn[2][0] == [[pytest.approx(0.25 + 16), pytest.approx(60)], [pytest.approx(0.5 + 32), 90]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


@pytest.mark.parametrize(("name", "begins"), [("a.pdf", b"%PDF"), ("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_the_plot_is_written_in_the_format_of_its_ending(name: str, begins: bytes, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw_curves(result(row("a", points(0.5))), tmp_path / "plots" / name)
    assert (tmp_path / "plots" / name).read_bytes().startswith(begins)


def test_a_plot_that_cannot_be_written_is_told_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["bench", "convergence", "--run", "dense", "--output", str(tmp_path / "out"), "--plot"]
    assert cli.main([*command, str(tmp_path / "figure.jpeg")]) == 2
    assert "figure.jpeg must end with .pdf, .png, .svg" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main([*command, str(tmp_path / "figure.pdf")]) == 2
    assert "--plot needs the package matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("in_this_process")
def test_the_command_writes_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    files = {name: str(tmp_path / "files" / f"table.{name}") for name in ("json", "csv", "latex")}
    common = "--max-steps 2 --batch-size 8 --threads 1 --no-tensorboard"
    words = ["--run", "plain=dense", "--common", common, "-n", "1", "--local", "--evaluate-every", "1", "--rate", "10mbit"]
    words += [word for name, file in files.items() for word in (f"--{name}", file)]
    words += [
        "--lr",
        "0.001",
        "--lr",
        "0.01",
        "--output",
        str(tmp_path / "out"),
        "--plot",
        str(tmp_path / "files" / "figure.pdf"),
    ]
    assert cli.main(["bench", "convergence", *words]) == 0
    told = capsys.readouterr()
    assert "| plain | 0.0" in told.out
    assert "est learning rate tried: add --lr 0." in told.err
    [found] = json.loads(Path(files["json"]).read_bytes())["rows"]
    lines = list(csv.DictReader(io.StringIO(Path(files["csv"]).read_text())))
    assert [float(line["top1"]) for line in lines] == [point["top1"] for point in found["curves"][0]]
    assert "plain & " in Path(files["latex"]).read_text()
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == [
        "figure.pdf",
        "table.csv",
        "table.json",
        "table.latex",
    ]
