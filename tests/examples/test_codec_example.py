"""examples/codec.py: its levels compared with a definition in plain Python, the contract of codecs, and training with it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.registry import load_codec
from psnode.codecs.rng import Key
from tests.codecs.promises import check_promises

ROOT = Path(__file__).parents[2]
EXAMPLE = f"{ROOT / 'examples' / 'codec.py'}:Logarithmic"


def test_magnitudes_are_rounded_down_to_a_level() -> None:
    codec = get_codec(load_codec(f"{EXAMPLE}:octaves=4"))
    x = np.random.default_rng(3).standard_normal(500).astype(np.float32)
    x[7] = 0
    decoded = codec.decode(codec.encode(x, Key.derive(1)))
    largest = float(np.abs(x).max())
    for value, found in zip(x.tolist(), decoded.tolist(), strict=True):
        steps = math.ceil(-math.log2(abs(value) / largest) * 127 / 4 - 1e-5) if value else 127
        expected = math.copysign(largest * 2 ** (-4 * steps / 127), value) if steps < 127 else 0.0
        assert math.isclose(found, expected, rel_tol=1e-6)


@pytest.mark.long
def test_it_keeps_the_promises_of_every_codec() -> None:
    check_promises(EXAMPLE, "contract", "measure", "statistics")


@pytest.mark.long
def test_a_job_trains_with_it_and_the_bench_measures_it(psnode: Callable[..., Any], tmp_path: Path) -> None:
    flags = ["--local", "2", "--network", "FC", "--threads", "1", "--no-tensorboard", "--max-steps", "60", "--lr", "0.05"]
    done = psnode("train", *flags, "--codec", EXAMPLE, "--feedback", "ef", "--train-dir", tmp_path / "run")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["loss"] < 0.5 * rows[0]["loss"]
    assert 0.2 < rows[-1]["uplink_bytes"] / rows[-1]["downlink_bytes"] < 0.35  # one byte per coordinate up, four down
    done = psnode("bench", "codecs", "--codec", EXAMPLE, "--size", "4096", "--seconds", "0", "--copies", "1")
    assert (done.code, "logarithmic" in done.out) == (0, True), done.err
    refused = psnode("bench", "codecs", "--codec", f"{EXAMPLE[:-3]}")
    assert (refused.code, len(refused.err.strip().splitlines())) == (2, 1)
