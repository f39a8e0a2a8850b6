"""Rounding to powers of two in NumPy: a reader of nuqsgd and natural, and the moments of their draws; it shares no code with
psnode.
"""

from __future__ import annotations

import struct

import numpy as np

from tests.codecs.golden_reader import header, section, unpack_planes
from tests.codecs.symbols_oracle import read_ans

Array = np.ndarray
NUQSGD, NATURAL, ANS = 6, 7, 65
LARGEST = float(np.finfo(np.float32).max)


def neighbours(x: Array, norm: Array, s: int) -> tuple[Array, Array]:
    """Return for each x the neighbours of |x| among the levels 0, 2^-s norm, ..., norm: one below and one above, in float64."""
    levels = np.concatenate([[0.0], 2.0 ** np.arange(-s, 1)])
    ratio = np.abs(x.astype(np.float64)) / np.where(norm == 0, 1, norm)
    above = np.clip(np.searchsorted(levels, ratio, side="left"), 1, levels.size - 1)
    return levels[above - 1] * norm, levels[above] * norm


def variance(x: Array, norm: Array, s: int) -> Array:
    """Return (b - |x|)(|x| - a) for the neighbours a and b, which is the variance of an unbiased choice between the two."""
    low, high = neighbours(x, norm, s)
    magnitude = np.abs(x.astype(np.float64))
    return np.maximum(high - magnitude, 0) * np.maximum(magnitude - low, 0)


def signed_powers(codes: Array, norm: Array) -> Array:
    """Return the decoded values: code 0 is 0, code 1 + 2 j + n is 2^-j norm with n = 0, and its negative with n = 1."""
    exponent = (codes - 1) // 2
    value = np.minimum(np.ldexp(norm, -np.maximum(exponent, 0)), LARGEST) * np.where(codes % 2, 1, -1)
    return np.where(codes == 0, 0.0, value).astype(np.float32)


def read(data: bytes) -> Array:
    stages, shape, body = header(data)
    size = int(np.prod(shape, dtype=np.int64))
    side, rest = section(body) if len(stages) > 1 else (body, b"")
    if stages[0] == NATURAL:
        top, exponents = struct.unpack_from("<hH", side)
        end, alphabet, norm = 4, 2 * exponents + 1, np.full(size, np.ldexp(1.0, top))
    else:
        assert stages[0] == NUQSGD
        levels, bucket = struct.unpack_from("<II", side)
        end, alphabet = 8 + 4 * -(-size // bucket), 2 * levels + 3
        norm = np.repeat(np.frombuffer(side, "<f4", -(-size // bucket), 8).astype(np.float64), bucket)[:size]
    if len(stages) > 1:
        assert stages[1] == ANS
        codes = read_ans(rest, size, alphabet)
    else:
        bits = (alphabet - 1).bit_length()
        codes = unpack_planes(side[end:], size, bits) if bits else np.zeros(size, np.int64)
    assert codes.max(initial=0) < alphabet
    return signed_powers(codes, norm)
