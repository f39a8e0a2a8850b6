"""Stored payloads: today's code writes the same bytes, and an independent decoder reads the same values.

REWRITE_GOLDEN=1 python -m pytest tests/codecs/test__golden.py

rewrites them. A rewrite breaks every payload stored or sent by an earlier version: raise psnode.codecs.payload.FORMAT.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.codecs.table import NAMES
from tests.codecs.golden_reader import header, read

FOLDER = Path(__file__).with_name("golden")
REWRITE = os.environ.get("REWRITE_GOLDEN") == "1"
SPECS = {
    "identity": "identity",
    "fp16": "fp16",
    "bf16": "bf16",
    "qsgd": "qsgd",
    "qsgd-ternary": "qsgd:levels=1,bucket=7,norm=max",
    "qsgd-wide": "qsgd:levels=300,bucket=1000",
    "qsgd-factors": "qsgd:factors=true",
    "qsgd-zstd": "qsgd+zstd",
    "qsgd-wide-zstd": "qsgd:levels=300+zstd",
    "qsgd-ans": "qsgd+ans",
    "qsgd-wide-ans": "qsgd:levels=300+ans",
    "qsgd-rice": "qsgd:levels=1+rice",
    "bf16-zstd": "bf16+zstd",
    "svd": "svd",
    "svd-qsgd": "svd+qsgd",
    "svd-fp16-zstd": "svd+fp16+zstd",
    "contractive-qsgd": "contractive(qsgd:levels=1)",
}
# the bytes of these depend on a library's version (LAPACK, libzstd); the decoded values do not
LIBRARY_DEPENDENT = {"svd", "zstd"}


def fixed_input() -> np.ndarray:
    """Return a (41, 27) float32 array computed from integers: heavy tails, zeros, denormals, 1e30, one bucket beyond 2^50."""
    number = np.arange(41 * 27, dtype=np.uint64)
    hashed = (number * np.uint64(2654435761) + np.uint64(12345)) % np.uint64(1 << 32)
    uniform = hashed.astype(np.float64) / 2.0**31 - 1
    x = (uniform**5 / (1.01 - np.abs(uniform))).astype(np.float32)
    x[number % np.uint64(5) == 0] = 0
    x[:20] = np.float32(1e-42)
    x[700:720] *= np.float32(1e-30)
    x[1030:] *= np.float32(1e30)
    return x.reshape(41, 27)


@pytest.mark.parametrize("name", SPECS)
def test_golden_bytes(name: str) -> None:
    path, codec = FOLDER / f"{name}.bin", get_codec(SPECS[name])
    x = fixed_input() if "svd" not in name else fixed_input()[:35, 6:]
    payload = codec.encode(x, Key.derive(1, "golden"))
    if REWRITE:
        path.write_bytes(payload.to_bytes())
    stored = Payload.from_bytes(path.read_bytes())
    if not LIBRARY_DEPENDENT.intersection(codec.stages):
        assert payload == stored
    decoded = codec.decode(stored)
    np.testing.assert_array_equal(decoded, read(stored.to_bytes()))
    assert decoded.shape == x.shape


def test_golden_bytes_are_rewritten_only_on_request() -> None:
    assert not REWRITE, "the golden bytes were written anew: look at the difference, then run again without REWRITE_GOLDEN"
    assert {path.stem for path in FOLDER.glob("*.bin")} >= set(SPECS)


def test_every_stage_has_golden_bytes() -> None:
    payloads = [path.read_bytes() for path in FOLDER.glob("*.bin") if not path.name.startswith("indices-")]
    assert {stage for data in payloads for stage in header(data)[0]} >= set(NAMES)
