"""Foundations of psnode's formulas: corrections that end after a fixed number of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.rows.interpreter import Interpreted
from tests.rows.forms import check, program

F = np.float32


def hard_pairs(size: int) -> tuple[Any, Any]:
    """Return minima and maxima of either sign, with any ratio, close to each other, or next to powers of two."""
    rng = np.random.default_rng(1)
    one, other = (rng.integers(0, 1 << 32, size, dtype=np.uint32) for _ in range(2))
    kinds = rng.integers(0, 4, size)
    other = np.where(kinds == 1, one + rng.integers(0, 1 << 12, size, dtype=np.uint32), other)
    rounded = (one & np.uint32(0xFF800000)) + rng.integers(-3, 4, size).astype(np.int32).view(np.uint32)
    one = np.where(kinds >= 2, rounded, one)
    other = np.where(kinds == 3, one ^ np.uint32(0x80000000) ^ rng.integers(0, 4, size, dtype=np.uint32), other)
    pair = np.array([one, other]).view(F)
    pair = pair[:, np.isfinite(pair).all(axis=0)]
    return pair.min(axis=0), pair.max(axis=0)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_the_step_of_minmax_is_found_by_two_corrections(bits: int) -> None:
    """Compare the step of minmax with the rule of docs/payload-format.md in NumPy, which needs at most two corrections."""
    least, greatest = hard_pairs(400_000)
    steps, span = 2**bits - 1, greatest.astype(float) - least
    up = np.where((span > 0) & (span < 2.0**-64), 2.0**64, np.where(span > 2.0**120, 0.25, 1.0))
    base, end, step = (least * up).astype(F), (greatest * up).astype(F), (span * up / steps).astype(F)
    needed = []
    for _ in range(4):
        beyond = base + F(steps) * step > end
        needed.append(int(beyond.sum()))
        step = np.where(beyond, np.nextafter(step, F(0)), step)
    assert needed[0] > 0
    assert needed[2:] == [0, 0]


@pytest.mark.parametrize("steps", [1, 3, 15, 255])
def test_the_factor_is_the_float32_next_to_the_quotient_or_the_one_below(steps: int) -> None:
    """Check that the span times the float32 below the rounded quotient does not exceed the last step. The span times the
    rounded quotient itself may exceed it, except if there is only one step.
    """
    span = np.abs(np.concatenate(hard_pairs(400_000)))
    span = span[(span > F(2.0**-100)) & (span < F(2.0**125))]
    nearest = (steps * 65536 / span.astype(float)).astype(F)
    assert (span * np.nextafter(nearest, F(0)) <= F(steps * 65536)).all()
    assert (span * nearest > F(steps * 65536)).any() == (steps > 1)


@pytest.mark.parametrize("spec", ["minmax", "minmax:bits=2", "minmax:bits=8"])
def test_minmax_between_hard_ends(spec: str) -> None:
    codec, functions = get_codec(spec), Interpreted(program(get_codec(spec)))
    rng = np.random.default_rng(2)
    for least, greatest in zip(*(ends[:150] for ends in hard_pairs(600)), strict=True):
        between = (least + (greatest.astype(float) - least) * rng.random(40)).astype(F)
        check(codec, functions, np.concatenate([between, [least, greatest]]).astype(F))
