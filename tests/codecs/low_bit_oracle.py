"""Readers of one- and two-bit payloads and of their random choices, in NumPy from the byte tables alone; no code of psnode."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np

from tests.codecs.golden_reader import unpack_planes
from tests.codecs.threefry_oracle import halves, stage_words

Array = np.ndarray
TERNGRAD, MINMAX, ONEBIT, SIGN, SCALEDSIGN, TBQ = 9, 10, 11, 12, 13, 14


def coins(words: tuple[int, int], stream: int, count: int) -> Array:
    """Return a random bit per coordinate: coordinate i takes bit i mod 32 of word i // 32; words come from blocks of 64 calls."""
    blocks = -(-count // 8192)
    drawn = stage_words(words, stream, 64 * blocks).reshape(blocks, 64, 4).transpose(0, 2, 1).reshape(-1)
    return np.unpackbits(drawn.astype("<u4").view(np.uint8), bitorder="little")[:count].astype(bool)


def rounded(a: Array, words: tuple[int, int], stream: int) -> tuple[Array, int]:
    """Return floor(a / 2^16 + U) in exact arithmetic, for float32 `a` and the random U of a stage, and the number of ties."""
    whole = np.floor(a.astype(np.float64))
    total = whole.astype(np.int64) + halves(words, stream, a.size).astype(np.int64)
    codes = total >> 16
    ties = np.flatnonzero(total % 65536 == 65535)
    for index in ties:
        fraction = Fraction(float(a[index])) - int(whole[index])
        w = stage_words(words, stream + 256, int(index) + 1)[index]
        drawn = sum(int(word) << (96 - 32 * place) for place, word in enumerate(w))
        codes[index] += drawn < int(fraction * 2**128)
    return codes, ties.size


def largest_factor(span: np.float32, steps: int) -> np.float32:
    """Return the largest float32 factor f for which the float32 product span * f is at most 2^16 * steps."""
    factor = np.float32(2**16 * steps / float(span))
    while np.float32(span * factor) > 2**16 * steps:
        factor = np.nextafter(factor, np.float32(0))
    return factor


def sign_bits(data: bytes, size: int) -> Array:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    assert bits.size == 8 * -(-size // 8)
    assert not bits[size:].any()
    return bits[:size].astype(bool)


def digits_of(data: bytes, size: int, block: int) -> Array:
    """Return ternary digits that are stored five to a byte, in blocks of `block` digits."""
    found, at = [np.zeros(0, np.int64)], 0
    for start in range(0, size, block):
        count = min(block, size - start)
        stride = -(-count // 5)
        plane = np.frombuffer(data, np.uint8, stride, at).astype(np.int64)
        assert plane.max() <= 242
        digits = np.concatenate([plane // 3**k % 3 for k in range(5)])
        assert not digits[count:].any()
        found.append(digits[:count])
        at += stride
    assert at == len(data)
    return np.concatenate(found)


def read_sign(body: bytes, size: int) -> Array:
    return np.where(sign_bits(body, size), np.float32(-1), np.float32(1))


def read_scaledsign(body: bytes, size: int) -> Array:
    (bucket,) = struct.unpack_from("<I", body)
    bucket = bucket or size
    end = 4 + 4 * -(-size // bucket)
    scales = np.repeat(np.frombuffer(body[4:end], "<f4"), bucket)[:size]
    return np.where(sign_bits(body[end:], size), -scales, scales)


def read_onebit(body: bytes, size: int) -> Array:
    low, high = np.frombuffer(body[:8], "<f4")
    return np.where(sign_bits(body[8:], size), low, high)


def read_terngrad(body: bytes, size: int) -> Array:
    return (digits_of(body[4:], size, 2560) - 1).astype(np.float32) * np.frombuffer(body[:4], "<f4")[0]


def minmax_fields(body: bytes, size: int) -> tuple[int, float, float, Array]:
    """Return bits, minimum, maximum and codes."""
    bits, low, high = struct.unpack_from("<Iff", body)
    return bits, low, high, unpack_planes(body[12:], size, bits)


def read_minmax(body: bytes, size: int) -> Array:
    """Return the decoded values, (base + code * step) / up. The power of two `up` keeps all terms in range. `step` is
    rounded down, so that no value exceeds the maximum.
    """
    bits, low, high, codes = minmax_fields(body, size)
    span, steps = high - low, 2**bits - 1
    up = 2.0**64 if 0 < span < 2.0**-64 else 0.25 if span > 2.0**120 else 1.0
    base, step, top = np.float32(low * up), np.float32(span * up / steps), np.float32(high * up)
    while base + np.float32(steps) * step > top:
        step = np.nextafter(step, np.float32(0))
    return (base + codes.astype(np.float32) * step) * np.float32(1 / up)


def read_tbq(body: bytes, size: int) -> Array:
    (tau,) = struct.unpack_from("<f", body)
    signs, at = np.zeros(size, np.float32), 4
    for start in range(0, size, 20480):
        count = min(20480, size - start)
        (sent,) = struct.unpack_from("<H", body, at)
        at += 2
        if sent == 65535:
            stride = -(-count // 5)
            signs[start : start + count] = digits_of(body[at : at + stride], count, 20480) - 1
            at += stride
        else:
            entries = np.frombuffer(body, "<u2", sent, at).astype(np.int64)
            places = entries % 32768
            assert (np.diff(places) > 0).all()
            signs[start + places] = np.where(entries >= 32768, -1, 1)
            at += 2 * sent
    assert at == len(body)
    return signs * np.float32(tau)


READERS = {
    SIGN: read_sign,
    SCALEDSIGN: read_scaledsign,
    ONEBIT: read_onebit,
    TERNGRAD: read_terngrad,
    MINMAX: read_minmax,
    TBQ: read_tbq,
}


def body_of(data: bytes) -> bytes:
    """Return the bytes of a payload after its header."""
    return data[8 + 4 * data[2] :]


def read(data: bytes) -> Array:
    """Return the decoded array of a payload with one stage."""
    shape = struct.unpack_from(f"<{data[2]}I", data, 8)
    values = READERS[data[3]](body_of(data), int(np.prod(shape, dtype=np.int64)))
    assert values.dtype == np.float32
    return values.reshape(shape)
