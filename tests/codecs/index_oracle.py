"""Reads payloads of the sparsifiers from the byte tables in their docstrings, in plain Python: shares no code with psnode."""

from __future__ import annotations

import itertools
import math
import struct

import numpy as np


def sections(body: bytes, count: int) -> tuple[list[bytes], bytes]:
    """The first `count` length-prefixed sections of `body`, and what follows them."""
    found = []
    for _ in range(count):
        (length,) = struct.unpack_from("<I", body)
        end = 4 + -(-length // 4) * 4
        assert not any(body[4 + length : end])
        found.append(body[4 : 4 + length])
        body = body[end:]
    return found, body


def body_of(payload: bytes) -> bytes:
    """What follows the header of a payload."""
    return payload[8 + 4 * payload[2] :]


def read_set(data: bytes, size: int) -> np.ndarray:
    """The ascending indices below `size` that `data` stands for."""
    coded, form = struct.unpack_from("<IB", data)
    bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=5), bitorder="little")
    if coded == 0:
        indices = np.empty(0, np.int64)
    elif form & 63 == 63:
        indices = np.flatnonzero(np.unpackbits(_bitmap(data[5:], coded, size), bitorder="little"))
        assert indices.size == coded
    else:
        low_bits = form & 63
        split = -(-coded * low_bits // 8) * 8
        low = bits[: coded * low_bits].reshape(coded, low_bits).astype(np.int64) @ (1 << np.arange(low_bits))
        ones = np.flatnonzero(bits[split:])
        assert ones.size == coded
        high = np.diff(ones, prepend=-1) - 1
        indices = np.cumsum((high << low_bits) + low + 1) - 1
    if form & 128:
        indices = np.setdiff1d(np.arange(size), indices)
    return indices


def _bitmap(data: bytes, count: int, size: int) -> np.ndarray:
    """rANS, one byte of the bitmap at a time."""
    p = count / size
    weights = [1.0]
    for _ in range(8):
        weights = [weight * (1 - p) for weight in weights] + [weights[-1] * p]
    total = list(itertools.accumulate(weights[byte.bit_count()] for byte in range(256)))
    ends = [round(t * (32768 / total[-1])) for t in total]
    lengths = [max(1, end - start) for start, end in itertools.pairwise([0, *ends])]
    lengths[lengths.index(max(lengths))] -= sum(lengths) - 32768
    starts = [0, *itertools.accumulate(lengths)]
    byte_of = [byte for byte in range(256) for _ in range(lengths[byte])]
    states = list(struct.unpack_from("<4I", data))
    words = iter(struct.unpack_from(f"<{len(data) // 2 - 8}H", data, 16))
    found = []
    for i in range(-(-size // 8)):
        state = states[i % 4]
        byte = byte_of[state % 32768]
        state = lengths[byte] * (state // 32768) + state % 32768 - starts[byte]
        states[i % 4] = state if state >= 65536 else state * 65536 + next(words)
        found.append(byte)
    assert states == [65536] * 4
    assert next(words, None) is None
    return np.array(found, np.uint8)


def log2_binomial(size: int, count: int) -> float:
    """log2 of the number of sets of `count` of `size`."""
    from scipy.special import gammaln

    return float(gammaln(size + 1) - gammaln(count + 1) - gammaln(size - count + 1)) / math.log(2)


def read_selection(payload: bytes, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices and float32 values of a payload of topk, threshold or graddrop."""
    (side,), values = sections(body_of(payload), 1)
    return read_set(side, size), np.frombuffer(values, "<f4")
