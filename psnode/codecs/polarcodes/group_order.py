"""Moves of values from their own order to the order of taps, from there to the order of classes, and back.

A chunk that is not in the order of taps is never copied to a place between, so that values are read and written once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Bytes, Float64s, Floats, Int64s
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.operations import load, store, total

GROUP = 64
CHUNK = 1 << 16
TAPS = 9

Flags = npt.NDArray[np.bool_]


class EnergyClasses(NamedTuple):
    """The class of every group, and the order of values in every chunk.

    `taps` (bool): True for chunks in the order of taps. `ids` (uint8): the class of every group, formed in the chosen order.
    """

    taps: Flags
    ids: Bytes


@instructions
def copy_group(source: Floats, start: int, target: Floats, to: int) -> None:
    """Write the 64 values of `source` from `start` on to `target`, from `to` on. Bounds are not checked."""
    store(target, to, load(source, start, GROUP))


@instructions
def energy_of_group(x: Floats, start: int) -> np.float64:
    """Return the mean square of the 64 values of `x` from `start` on. The second half is added to the first, and so on."""
    values = load(x, start, GROUP).astype(np.float64)
    return total(values * values) * (1 / GROUP)  # type: ignore[no-any-return]


@inlined
def _energy_of_taps(x: Floats, start: int, scratch: Floats) -> float:
    """Return the mean square of 64 values of `x`, which begin at `start` and are 9 apart. `scratch`: 64 float32."""
    for i in range(GROUP):
        scratch[i] = x[start + i * TAPS]
    return energy_of_group(scratch, 0)


@inlined
def _prefers_taps(chunk: Floats, floor: float, scratch: Floats) -> bool:
    """Return True if groups of values that are 9 apart have a smaller product of (energy + floor) than groups of neighbours.

    The product is taken over sampled groups of `chunk`.
    """
    mantissa, exponent = 1.0, 0
    for start in range(0, chunk.size - GROUP * TAPS + 1, GROUP * TAPS):
        number = start // (GROUP * TAPS)
        dense = energy_of_group(chunk, start + number % TAPS * GROUP) + floor
        sparse = _energy_of_taps(chunk, start + number * 2 % TAPS, scratch) + floor
        ratio, power = math.frexp(sparse / dense)
        mantissa, more = math.frexp(mantissa * ratio)
        exponent += power + more
    return exponent < 0


@kernel
def order(x: Floats, floor: float, taps: Flags, y: Floats, energies: Float64s, scratch: Floats) -> None:
    """Choose the order of every chunk, and write it to `taps`. Overwrite `energies` with the energies of the groups.

    Chunks in the order of taps are written to `y` in this order. So is the last group, followed by zeros, if it is not full.
    `scratch`: 64 float32.
    """
    full = x.size // GROUP
    for i in range(full * GROUP, y.size):
        y[i] = x[i] if i < x.size else np.float32(0)
    for number in range(taps.size):
        start, stop = number * CHUNK, min((number + 1) * CHUNK, x.size)
        taps[number] = _prefers_taps(x[start:stop], floor, scratch)
        if taps[number]:  # values 0, 9, 18, ..., then 1, 10, ...
            at = start
            for first in range(start, start + TAPS):
                for i in range(first, stop, TAPS):
                    y[at] = x[i]
                    at += 1
        for g in range(start // GROUP, (stop + GROUP - 1) // GROUP):
            energies[g] = energy_of_group(y if taps[number] or g == full else x, g * GROUP)


@kernel
def sort(x: Floats, y: Floats, taps: Flags, ids: Bytes, starts: Int64s, z: Floats) -> None:
    """Copy the values of each group to `z`, after those of earlier groups of the same class; omit class 0.

    x, y, taps: as `order` left them. starts: for each class, where its values begin; it is overwritten.
    """
    full = x.size // GROUP
    for g in range(ids.size):
        if ids[g]:
            at = starts[ids[g]]
            if taps[g * GROUP // CHUNK] or g == full:
                copy_group(y, g * GROUP, z, at)
            else:
                copy_group(x, g * GROUP, z, at)
            starts[ids[g]] = at + GROUP


@inlined
def _put(z: Floats, at: int, out: Floats, start: int) -> None:
    """Write the 64 values of `z` from `at` on, or zeros if `at` is negative, to `out` from `start` on, up to its end."""
    size = min(GROUP, out.size - start)
    if at < 0:
        for i in range(start, start + size):
            out[i] = np.float32(0)
    elif size == GROUP:
        copy_group(z, at, out, start)
    else:
        for i in range(size):
            out[start + i] = z[at + i]


@kernel
def unsort(z: Floats, ids: Bytes, starts: Int64s, taps: Flags, scratch: Floats, out: Floats) -> None:
    """Undo `sort`, with zeros for class 0, and the order of taps. This fills `out`. `scratch`: as many values as a chunk has."""
    for number in range(taps.size):
        begin, stop = number * CHUNK, min((number + 1) * CHUNK, out.size)
        for g in range(begin // GROUP, (stop + GROUP - 1) // GROUP):
            at = starts[ids[g]] if ids[g] else -1
            if taps[number]:
                _put(z, at, scratch, g * GROUP - begin)
            else:
                _put(z, at, out, g * GROUP)
            if ids[g]:
                starts[ids[g]] = at + GROUP
        if taps[number]:
            at = 0
            for first in range(begin, begin + TAPS):
                for i in range(first, stop, TAPS):
                    out[i] = scratch[at]
                    at += 1
