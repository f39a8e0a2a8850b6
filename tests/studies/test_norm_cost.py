"""`python -m studies.norm_cost` runs with today's codecs and downlink, and has a row per codec."""

from __future__ import annotations

import pytest

from studies.harness import main
from studies.norm_cost import STUDY


def test_a_row_for_each_codec(capsys: pytest.CaptureFixture[str]) -> None:
    specs = ["identity", "topk:ratio=0.05+fp16"]
    assert main(STUDY, ["--size", "40000", *(word for spec in specs for word in ("--codec", spec))]) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row[0].strip() for row in rows] == ["codec", *specs]
    assert all(float(cell) > 0 for row in rows[1:] for cell in row[1:])
