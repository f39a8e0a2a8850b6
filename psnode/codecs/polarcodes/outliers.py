"""Values far from their decoded values. Each is corrected separately, by an index and a byte.

Gradients have heavier tails than the prior of any group, and the points of the code end three standard deviations from 0. An
error r of a value costs r^2. Correcting it takes roughly 18 bits for an index and a byte. If a bit spent elsewhere saves an
error of m, the correction is worth its cost if r^2 > 18 m. The byte holds the sign of r and a number k, with |r| between T 2^(k
/ 8) and T 2^((k + 1) / 8), where T is the least error that is corrected. The geometric mean of both limits is added.

    uint32 length, then float32 T and selection.indices, or nothing if no value is corrected; zeros to a multiple of 4 bytes
    uint8 sign 128 + k of each corrected value; zeros to a multiple of 4 bytes
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Bytes, Floats, Words32
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
_LARGEST = float(np.finfo(np.float32).max)


@kernel
def _count(x: Floats, y: Floats, limit: float) -> int:
    count = 0
    for i in range(x.size):
        count += 1 if abs(np.float64(x[i]) - np.float64(y[i])) >= limit else 0
    return count


@kernel
def _collect(x: Floats, y: Floats, limit: float, places: Words32) -> None:
    found = 0
    for i in range(x.size):
        if abs(np.float64(x[i]) - np.float64(y[i])) >= limit:
            places[found] = np.uint32(i)
            found += 1


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
    limit, count = _affordable(x, y, limit)
    if not count:
        return write_section(body, 0)
    places = np.empty(count, np.uint32)
    _collect(x, y, float(limit), places)
    body[4:8] = np.frombuffer(limit.tobytes(), np.uint8)
    start = write_section(body, 4 + indices.write(places, x.size, body[8:]))
    errors = x[places].astype(np.float64) - y[places]
    codes = np.searchsorted(_grid(float(limit)), np.abs(errors), side="right") - 1
    end = start + padded(count)
    body[start:end] = 0
    body[start : start + count] = codes + 128 * (errors < 0)
    return end


def _affordable(x: Floats, y: Floats, limit: np.float32) -> tuple[np.float32, int]:
    """Return the least error to correct, and the number of errors that exceed it.

    The least error is `limit` if few enough errors exceed `limit`. Otherwise it is raised until few enough errors exceed it.
    """
    most, least = x.size // _SHARE, limit
    while (count := _count(x, y, float(limit))) > most:
        limit *= np.float32(2)
    for _ in range(3 * (limit > least)):
        smaller = np.float32(limit / 2**0.25)
        if (more := _count(x, y, float(smaller))) > most:
            break
        limit, count = smaller, more
    return limit, count


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
