"""Selections by a formula: the text of their kernels, run as C++ on a processor and compiled for GPUs."""

from __future__ import annotations

import re

import numpy as np
import pytest

from psnode.codecs.device.cupy.row_kernels import standalone
from psnode.codecs.device.cupy.selection_kernels import BLOCK_ROWS, ROOM
from psnode.codecs.rows import bits, random16, u32, where
from psnode.codecs.rows.known.selections import MagnitudeRanks
from psnode.codecs.rows.language import largest_of_all
from psnode.codecs.rows.selection_rank import Ranking, text_of
from psnode.codecs.rows.values import Value
from psnode.errors import CodecSpecError
from studies import nvrtc
from tests.rows.hosted import GXX, address, build, uint32

with_nvrtc = pytest.mark.skipif(not nvrtc.find(), reason="no NVRTC: pip install nvidia-cuda-nvrtc")


class Positive:
    """A selection that ranks positive values by size and selects no others."""

    id = "positive"

    def rank(self, v: Value) -> Value:
        return where(v > 0, bits(v), u32(0))


def found(ranking: Ranking, x: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices and values that the kernels of a rank find in the whole rows of `x`."""
    library = build(text_of(ranking))
    rows = x.size // 512
    blocks = -(-rows // BLOCK_ROWS)
    counts, rooms = np.zeros(blocks, np.uint32), np.zeros(blocks * ROOM, np.uint8)
    library.mark(address(x), address(counts), address(rooms), uint32(limit), uint32(rows), uint32(blocks))
    ends = np.cumsum(counts, dtype=np.uint32)
    indices, values = np.empty(ends[-1], np.uint32), np.empty(ends[-1], np.float32)
    library.collect(*map(address, (x, rooms, counts, ends, indices, values)), uint32(blocks))
    return indices, values


@pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 33])
def test_coordinates_whose_rank_reaches_the_limit_are_found_in_order(rows: int) -> None:
    x = np.random.default_rng(rows).standard_normal(512 * rows).astype(np.float32)
    x[:512:3] = 0
    for limit in (1e-45, 0.5, 1.0, 2.5, 9.0):
        least = int(np.float32(limit).view(np.uint32))
        for ranking, rank in ((MagnitudeRanks(), np.abs(x)), (Positive(), x)):
            indices, values = found(ranking, x, least)
            np.testing.assert_array_equal(indices, np.flatnonzero(rank >= np.float32(limit)))
            np.testing.assert_array_equal(values, x[indices])


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        (lambda v: v, "a u32 of every coordinate"),
        (lambda v: random16(), "knows its row alone"),
        (lambda v: where(v == largest_of_all(v), u32(1), u32(0)), "knows its row alone"),
        (lambda v: 7, "a u32 of every coordinate"),
    ],
)
def test_what_is_no_rank_is_refused(rank: object, message: str) -> None:
    ranking = type("Other", (), {"id": "other", "rank": staticmethod(rank)})()
    with pytest.raises(CodecSpecError, match=message):
        text_of(ranking)


@with_nvrtc
@pytest.mark.sweep
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_gpus_run_it_from_registers(architecture: str) -> None:
    compiled = nvrtc.compile_text(standalone(text_of(MagnitudeRanks())), architecture)
    entries = {"mark", "collect", "square_rows", "norm_of_rows", "survey", "fold_sums"}
    assert set(re.findall(r"Compiling entry function '(\w+)'", compiled.log)) == entries
    assert {*re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", compiled.log)} == {("0", "0")}
    assert re.findall(r"\bfma\.", compiled.ptx) == []
