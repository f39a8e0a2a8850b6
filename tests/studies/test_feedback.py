"""`python -m studies.feedback`: the timed steps are those of a worker's sender."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from psnode.bench.codecs import KEY
from psnode.bench.inputs import gaussian
from psnode.bench.yardsticks.rotation import Rotation
from psnode.codecs import get_codec
from studies.feedback import CODECS, STUDY, Options, _Steps, measure
from studies.harness import main

SIZE = 4096


def test_a_step_adds_the_gradient_and_leaves_the_residual() -> None:
    """Compare with top-k by hand: everything stays in the residual except the largest entries."""
    gradient = gaussian(SIZE).flat
    steps = _Steps("topk:ratio=0.25", Rotation(gradient, 0), SIZE)
    expected = np.zeros(SIZE, np.float32)
    for _ in range(3):
        steps.take()
        expected += gradient
        expected[np.argsort(-np.abs(expected), kind="stable")[: SIZE // 4]] = 0
        np.testing.assert_array_equal(steps.residual, expected)


def test_all_codecs_are_used_in_their_contractive_forms() -> None:
    """Check that every codec leaves a residual smaller than its input. The residual of the plain qsgd with one level would
    grow without bound.
    """
    gradient = gaussian(SIZE).flat
    for spec in (*CODECS, "qsgd:levels=1"):
        steps = _Steps(spec, Rotation(gradient, 0), SIZE)
        steps.take()
        assert 0 < np.linalg.norm(steps.residual) < np.linalg.norm(gradient), spec
    bare = get_codec("qsgd:levels=1")
    assert np.linalg.norm(gradient - bare.decode(bare.encode(gradient, KEY))) > np.linalg.norm(gradient)


def test_shares_are_those_of_the_rates_beside_them() -> None:
    options = Options(codec=("scaledsign", "svd"), cached=SIZE, size=2 * SIZE, repeats=1, seconds=0.0, copies=1)
    found = measure(options)
    for place, size in (("cached", SIZE), ("memory", 2 * SIZE)):
        about = found.facts["places"][place]
        assert about["size"] == size
        for row in (row[place] for row in found.rows):
            assert row["copy"] == pytest.approx(4 / row["ns"] / about["copy_gbps"])
            assert row["read"] == pytest.approx(4 / row["ns"] / about["read_gbps"])


def test_the_command_prints_a_row_for_each_codec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "feedback.json"
    command = ["--codec", "sign", "--codec", "topk:ratio=0.5", "--cached", "1024", "--size", "2048"]
    assert main(STUDY, [*command, "--repeats", "1", "--seconds", "0", "--copies", "1", "--json", str(path)]) == 0
    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows == ["codec", "sign", "topk:ratio=0.5"]
    assert [row["spec"] for row in json.loads(path.read_text())["rows"]] == ["sign", "topk:ratio=0.5"]
