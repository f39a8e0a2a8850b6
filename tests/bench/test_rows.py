"""`psnode bench codecs --compare rows`: a row for every codec that has a formula and kernels by hand, their ratios, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from psnode.bench.rows import ACTIONS, ENOUGH
from psnode.cli import app
from psnode.codecs import get_codec
from psnode.codecs.rows.codec import Generated
from psnode.errors import ConfigurationError
from tests.rows.forms import with_formula


def compare(*arguments: str) -> str:
    flags = ["bench", "codecs", "--compare", "rows", "--size", "2048", "--seconds", "0", "--copies", "0", *arguments]
    return CliRunner().invoke(app, flags, catch_exceptions=False, standalone_mode=False).stdout


@pytest.mark.usefixtures("forgotten_codecs")
def test_every_codec_with_a_formula_beside_kernels_by_hand_is_compared(tmp_path: Path) -> None:
    text = compare("--json", str(tmp_path / "rows.json"))
    result = json.loads((tmp_path / "rows.json").read_text())
    compared = {row["spec"] for row in result["rows"]}
    assert compared >= {name for name in with_formula() if not isinstance(get_codec(name), Generated)}
    assert compared == {"qsgd", "tbq"}
    for row in result["rows"]:
        ratios = [row[action]["generated"] / row[action]["hand"] for action in ACTIONS]
        assert ratios == pytest.approx([row[action]["ratio"] for action in ACTIONS])
        assert row["enough"] == all(ratio >= ENOUGH for ratio in ratios)
        assert f"| {row['spec']} |" in text


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    for name in ("topk", "minmax"):
        with pytest.raises(ConfigurationError, match=f"{name} has no formula beside kernels by hand"):
            compare("--codec", name)
    with pytest.raises(ConfigurationError, match="leave out --plot"):
        compare("--plot", str(tmp_path / "plot.png"))
