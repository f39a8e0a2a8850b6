"""`python -m studies.rows`: a row for every codec with both a formula and hand-written kernels, the ratio of their speeds, and
refusals of other codecs and options.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psnode.codecs import get_codec
from psnode.codecs.rows.codec import Generated
from studies.harness import main
from studies.rows import ACTIONS, ENOUGH, STUDY
from tests.rows.forms import with_formula


def compare(*arguments: str) -> int:
    return main(STUDY, ["--size", "2048", "--seconds", "0", "--copies", "0", *arguments])


def test_every_codec_with_a_formula_beside_kernels_by_hand_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare("--json", str(tmp_path / "rows.json")) == 0
    text = capsys.readouterr().out
    result = json.loads((tmp_path / "rows.json").read_text())
    compared = {row["spec"] for row in result["rows"]}
    assert compared >= {name for name in with_formula() if not isinstance(get_codec(name), Generated)}
    assert compared == {"qsgd", "tbq"}
    for row in result["rows"]:
        ratios = [row[action]["generated"] / row[action]["hand"] for action in ACTIONS]
        assert ratios == pytest.approx([row[action]["ratio"] for action in ACTIONS])
        assert row["enough"] == all(ratio >= ENOUGH for ratio in ratios)
        assert f"| {row['spec']} |" in text


def test_what_cannot_be_compared_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("topk", "minmax"):
        assert compare("--codec", name) == 2
        assert f"{name} has no formula beside kernels by hand" in capsys.readouterr().err
    assert compare("--plot", "plot.png") == 2
    assert "unknown option --plot" in capsys.readouterr().err
