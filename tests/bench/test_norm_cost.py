"""scripts/norm_cost.py runs with the codecs and the downlink as they are now, and prints a line a codec."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "norm_cost.py"


@pytest.mark.parametrize("codec", ["identity", "topk:ratio=0.05+fp16"])
def test_a_line_for_a_codec(codec: str) -> None:
    spec = importlib.util.spec_from_file_location("norm_cost", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    line = re.fullmatch(r"(\S+): addition x ([\d.]+), lane x ([\d.]+)", script.cost(codec, 40_000))
    assert line is not None
    assert line[1] == codec
