"""Values far from their decoded values. Each is corrected separately, by an index and a byte.

Gradients have heavier tails than the prior of any group, and the points of the code end three standard deviations from 0. An
error r of a value costs r^2. Correcting it takes roughly 18 bits for an index and a byte. If a bit spent elsewhere saves an
error of m, the correction is worth its cost if r^2 > 18 m. The byte holds the sign of r and a number k, with |r| between T 2^(k
/ 8) and T 2^((k + 1) / 8), where T is the least error that is corrected. The geometric mean of both limits is added.

    uint32 length, then float32 T and selection.indices, or nothing if no value is corrected; zeros to a multiple of 4 bytes
    uint8 sign 128 + k of each corrected value; zeros to a multiple of 4 bytes
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Bytes, Float64s, Floats, Int64s, Words32
from psnode.codecs.kernels.cache_hints import wide
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.selection import indices
from psnode.codecs.stages import padded, read_section, write_section
from psnode.errors import PayloadError

MOST = 1 << 28  # maximum number of coordinates
_WORTH = 18.0  # bits per corrected value
_SHARE = 512  # at most one in this many values is corrected
_STEPS = 128
_STEP = 1.0905077326652577  # 2^(1/8)
_MIDDLE = 1.0442737824274138  # 2^(1/16)
_ROOM = 16  # times as many errors as can be corrected are collected at first, of which the largest are taken
_BLOCK = 32
_OCTAVES = 260  # more than float32 has, and the differences of its numbers
_LARGEST = float(np.finfo(np.float32).max)


@kernel
def _collect(x: Floats, y: Floats, limit: float, places: Words32, errors: Float64s) -> int:
    """Write the index and the size of every error of at least `limit`. Return their number, which may exceed the room for them.

    After the room is used up, errors are still counted.
    """
    wide()
    found = 0
    for start in range(0, x.size, _BLOCK):
        own, other = x[start : start + _BLOCK], y[start : start + _BLOCK]
        count = 0
        for i in range(own.size):
            count += 1 if abs(np.float64(own[i]) - np.float64(other[i])) >= limit else 0
        if count and found + count <= places.size:
            at = found
            for i in range(own.size):
                error = abs(np.float64(own[i]) - np.float64(other[i]))
                if error >= limit:
                    places[at] = np.uint32(start + i)
                    errors[at] = error
                    at += 1
        found += count
    return found


@kernel
def _octaves(x: Floats, y: Floats, limit: float, counts: Int64s) -> None:
    """Count the errors from limit 2^i on and below limit 2^(i + 1) in counts[i]; the last entry counts larger ones too."""
    low, exponent = math.frexp(limit)
    for i in range(x.size):
        error = abs(np.float64(x[i]) - np.float64(y[i]))
        if error >= limit:
            part, power = math.frexp(error)
            octave = power - exponent - (1 if part < low else 0)
            counts[min(octave, counts.size - 1)] += 1


def _grid(limit: float) -> npt.NDArray[np.float64]:
    """Return T 2^(k / 8) for all k, where T is `limit`."""
    return limit * np.cumprod(np.concatenate([[1.0], np.full(_STEPS - 1, _STEP)]))


def max_nbytes(size: int) -> int:
    """Return the largest number of bytes that `write` writes for `size` values."""
    most = size // _SHARE
    return 4 + padded(4 + indices.max_nbytes(most, size)) + padded(most)


def write(x: Floats, y: Floats, multiplier: float, body: Bytes) -> int:
    """Write the corrections that lead from `y` to `x` where both differ most. Return the number of bytes. `multiplier` is m."""
    limit = np.float32(min(np.sqrt(_WORTH * multiplier), _LARGEST / 4))
    limit = max(limit, np.finfo(np.float32).smallest_normal)
    limit, places = _affordable(x, y, limit)
    if not places.size:
        return write_section(body, 0)
    body[4:8] = np.frombuffer(limit.tobytes(), np.uint8)
    start = write_section(body, 4 + indices.write(places, x.size, body[8:]))
    errors = x[places].astype(np.float64) - y[places]
    codes = np.searchsorted(_grid(float(limit)), np.abs(errors), side="right") - 1
    end = start + padded(places.size)
    body[start:end] = 0
    body[start : start + places.size] = codes + 128 * (errors < 0)
    return end


def _affordable(x: Floats, y: Floats, limit: np.float32) -> tuple[np.float32, Words32]:
    """Return the least error to correct, and the indices of the errors that reach it.

    The least error is `limit` if few enough errors reach it. Otherwise it is doubled until few enough errors reach it, and then
    divided by 2^(1/4) as long as they remain few enough, but not more than three times.
    """
    most = x.size // _SHARE
    places, errors = np.empty(_ROOM * most, np.uint32), np.empty(_ROOM * most)
    if (count := _collect(x, y, float(limit), places, errors)) > errors.size:  # far too many
        counts = np.zeros(_OCTAVES, np.int64)
        _octaves(x, y, float(limit), counts)
        limit = np.float32(np.ldexp(limit, int(np.count_nonzero(np.cumsum(counts[::-1]) > most))))
        limit = _lowered(limit, most, lambda least: _collect(x, y, least, places[:0], errors[:0]))
        count = _collect(x, y, float(limit), places, errors)
    elif count > most:
        while np.count_nonzero(errors[:count] >= limit) > most:
            limit *= np.float32(2)
        limit = _lowered(limit, most, lambda least: int(np.count_nonzero(errors[:count] >= least)))
    return limit, places[:count][errors[:count] >= limit]


def _lowered(limit: np.float32, most: int, count: Callable[[float], int]) -> np.float32:
    """Return `limit` / 2^(j/4) for the largest j of 0 to 3 up to which at most `most` errors reach it. `count` counts them."""
    for _ in range(3):
        smaller = np.float32(limit / 2**0.25)
        if count(float(smaller)) > most:
            break
        limit = smaller
    return limit


def read(body: Bytes, size: int) -> tuple[Words32, npt.NDArray[np.float64], Bytes]:
    """Return the indices of the corrected values among `size`, the numbers to add, and the rest of `body`. Raise PayloadError."""
    side, rest = read_section(body)
    if not side.size:
        return np.empty(0, np.uint32), np.empty(0), rest
    limit = float(side[:4].view(np.float32)[0]) if side.size >= 4 else 0.0
    if not 0 < limit < np.inf:
        raise PayloadError(f"polar: {limit} is no least error")
    places = indices.read(side[4:], size)
    end = padded(places.size)
    if rest.size < end or rest[places.size : end].any():
        raise PayloadError(f"polar: the errors of {places.size} values are cut off, or not padded with zeros")
    codes = rest[: places.size]
    errors = _grid(limit)[codes & 127] * _MIDDLE
    return places, np.where(codes >= 128, -errors, errors), rest[end:]


def add(places: Words32, errors: npt.NDArray[np.float64], out: Floats) -> None:
    """Add `errors` to the values of `out` at the indices `places`, limited to the range of float32."""
    out[places] = np.clip(out[places] + errors, -_LARGEST, _LARGEST).astype(np.float32)
