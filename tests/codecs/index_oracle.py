"""Readers of sparsifiers' payloads in plain Python, written from the byte tables in docstrings; they share no
code with psnode.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable

import numpy as np

from tests.codecs.threefry_oracle import stage_words


def sections(body: bytes, count: int) -> tuple[list[bytes], bytes]:
    """Return the first `count` length-prefixed sections of `body`, and the rest."""
    found = []
    for _ in range(count):
        (length,) = struct.unpack_from("<I", body)
        end = 4 + -(-length // 4) * 4
        assert not any(body[4 + length : end])
        found.append(body[4 : 4 + length])
        body = body[end:]
    return found, body


def body_of(payload: bytes) -> bytes:
    """Return the bytes of a payload after its header."""
    return payload[8 + 4 * payload[2] :]


def read_set(data: bytes, size: int) -> np.ndarray:
    """Return the ascending indices below `size` that `data` encodes."""
    coded, form = struct.unpack_from("<IB", data)
    bits = np.unpackbits(np.frombuffer(data, np.uint8, offset=5), bitorder="little")
    if coded == 0:
        indices = np.empty(0, np.int64)
    elif form & 63 == 63:
        indices = np.flatnonzero(np.unpackbits(_bitmap(data[5:], coded, size), bitorder="little"))
        assert indices.size == coded
    else:
        widths, start = [form & 63] * coded, 0
        if form & 63 == 62:
            groups = -(-coded // 32)
            widths = [int(bits[5 * i : 5 * i + 5] @ (1 << np.arange(5))) for i in np.arange(groups).repeat(32)[:coded]]
            start = -(-5 * groups // 8) * 8
        ends = start + np.cumsum(widths)
        split = -(-int(ends[-1]) // 8) * 8
        ones = np.flatnonzero(bits[split:])
        assert ones.size == coded
        assert -(-(ones[-1] + 1) // 8) * 8 == bits[split:].size
        high = (np.diff(ones, prepend=-1) - 1).tolist()
        gaps = []
        for end, width, quotient in zip(ends.tolist(), widths, high, strict=True):
            low = int(bits[end - width : end].astype(np.int64) @ (1 << np.arange(width)))
            gaps.append((quotient << width) + low)
        indices = np.cumsum(np.array(gaps) + 1) - 1
    if form & 128:
        indices = np.setdiff1d(np.arange(size), indices)
    return indices


def _bitmap(data: bytes, count: int, size: int) -> np.ndarray:
    """Decode a bitmap by rANS, one byte at a time."""
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
    """Return log2 of the number of subsets with `count` of `size` elements."""
    from scipy.special import gammaln

    return float(gammaln(size + 1) - gammaln(count + 1) - gammaln(size - count + 1)) / math.log(2)


def draw(count: int, size: int, words: tuple[int, int], stream: int) -> np.ndarray:
    """Return `count` distinct ascending indices below `size`, drawn with rejection. If `count` is more than half of `size`,
    the indices that are left out are drawn.
    """
    wanted = size - count if 2 * count > size else count
    drawn: set[int] = set()
    calls = 64 * (2 + wanted // 100)
    planes = stage_words(words, stream, calls).reshape(-1, 64, 4).transpose(0, 2, 1).reshape(-1)
    for word in planes.tolist():
        index, rest = divmod(word * size, 2**32)
        if len(drawn) < wanted and rest >= 2**32 % size:
            drawn.add(index)
    assert len(drawn) == wanted
    places = np.array(sorted(drawn), np.int64)
    return places if wanted == count else np.setdiff1d(np.arange(size), places)


Placed = tuple[int, Callable[[np.ndarray], np.ndarray]]


def _placed(places: np.ndarray, size: int) -> Placed:
    def place(values: np.ndarray) -> np.ndarray:
        dense = np.zeros(size, np.float32)
        dense[places] = values
        return dense

    return places.size, place


def expand_selection(side: bytes, shape: tuple[int, ...]) -> Placed:
    """Return the number of values of topk, threshold or graddrop, and a function that puts the values into an array."""
    return _placed(read_set(side, math.prod(shape)), math.prod(shape))


def expand_randk(side: bytes, shape: tuple[int, ...]) -> Placed:
    """Return the number of values of randk, and a function that puts the values into an array."""
    first, second, count = struct.unpack("<QQI", side)
    return _placed(draw(count, math.prod(shape), (first, second), 17), math.prod(shape))


def read_entrywise(body: bytes, size: int) -> np.ndarray:
    """Return the decoded array, flat."""
    _, indices, values = entrywise_parts(body, size)
    return _placed(indices, size)[1](values)


def entrywise_parts(body: bytes, size: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the level V, the sent indices and their decoded values."""
    (level,) = struct.unpack_from("<f", body)
    (sent, certain, signs), raw = sections(body[4:], 3)
    indices = read_set(sent, size)
    exact = read_set(certain, indices.size)
    negative = np.unpackbits(np.frombuffer(signs, np.uint8), bitorder="little")
    values = np.empty(indices.size, np.float32)
    drawn = np.setdiff1d(np.arange(indices.size), exact)
    values[drawn] = level * (1 - 2.0 * negative[: drawn.size])
    values[exact] = np.frombuffer(raw, "<f4")
    return level, indices, values


def read_adacomp(body: bytes, size: int) -> np.ndarray:
    """Return the decoded array, flat."""
    (scale,) = struct.unpack_from("<f", body)
    (sent,), bits = sections(body[4:], 1)
    indices = read_set(sent, size)
    assert len(bits) == -(-indices.size // 8)
    negative = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    assert not negative[indices.size :].any()
    return _placed(indices, size)[1](np.float32(scale) * (1 - 2.0 * negative[: indices.size]).astype(np.float32))


def read_selection(payload: bytes, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices and float32 values of a payload of topk, threshold or graddrop."""
    (side,), values = sections(body_of(payload), 1)
    return read_set(side, size), np.frombuffer(values, "<f4")
