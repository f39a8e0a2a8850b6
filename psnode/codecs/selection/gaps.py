"""Golomb-Rice code of ascending indices, by the gaps between them: within 1 % of the optimum for sparse random sets.

A gap g >= 0 (the number of coordinates skipped) is sent as its b low bits and, in unary, g >> b. The low bits of all gaps come
first, then the unary parts, each of g >> b zeros and a one. Both streams are filled from the lowest bit of every byte up and
padded with zeros.

If k of d coordinates are chosen at random, a code with b near log2(ln 2 d / k) costs about k (log2(d / k) + 1.5) bits. The cost
of any k coordinates is at most k (1 + b) + (d - k) / 2^b bits. The large entries of a gradient lie in clusters. A separate b
for every 32 gaps exploits this. Each of these b takes 5 bits, which precede the two streams. Such a code may be a quarter
shorter than log2 binomial(d, k). The shorter of the codes with one b and with many is sent.

Source: Golomb, "Run-length encodings", IEEE Trans. Inf. Theory 12, 1966; Rice and Plaunt, "Adaptive variable-length coding
for efficient compression of spacecraft television data", IEEE Trans. Commun. 19, 1971.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Bytes, Words, Words32
from psnode.codecs.selection.gap_kernels import GROUP, fit, read_streams, unary_bits, write_streams
from psnode.errors import PayloadError

MAX_LOW_BITS = 28
PARAMETER_BITS = 5
GAIN = 49 / 50  # a b for each group is tried if its expected length is at most this share of that with one b


class Code(NamedTuple):
    """Parameters of a code: its length in bytes, the common b, and the b of every group of 32 gaps (uint8).

    The common b is None if every group has its own b.
    """

    nbytes: int
    b: int | None
    bits: Bytes


def widest(count: int, size: int) -> int:
    """Return the largest b with 2^b <= the mean gap between `count` >= 1 of `size` indices, or 0.

    The bound of max_nbytes is computed with this b.
    """
    return max(0, ((size - count) // count).bit_length() - 1)


def max_nbytes(count: int, size: int) -> int:
    """Return the largest length in bytes of a code of at most `count` of `size` indices, count <= size / 2."""
    if not count:
        return 0
    b = widest(count, size)
    return _bytes(count * (1 + b) + (size - count >> b)) + 2  # each stream is padded; fewer indices may take slightly more


def choose(indices: Words32, size: int) -> Code:
    """Return the shortest code found for `indices`, which are ascending and below `size`; there must be at least one."""
    groups = -(-indices.size // GROUP)
    wide = widest(indices.size, size)
    fixed = min(
        (_code(indices, np.full(groups, b, np.uint8), b) for b in range(max(0, wide - 1), wide + 2)), key=lambda code: code.nbytes
    )
    bits = np.empty(groups, np.uint8)
    expected, expected_fixed = fit(indices, bits)
    if expected + PARAMETER_BITS * groups > GAIN * expected_fixed:
        return fixed
    fitted = _code(indices, bits, None)
    return fitted if fitted.nbytes < fixed.nbytes else fixed


def _code(indices: Words32, bits: Bytes, b: int | None) -> Code:
    return Code(sum(_lengths(indices.size, bits, b)) + _bytes(unary_bits(indices, bits)), b, bits)


def _lengths(count: int, bits: Bytes, b: int | None) -> tuple[int, int]:
    """Return the length in bytes of the parameters, and of the stream of low bits."""
    low = GROUP * int(bits.sum(dtype=np.int64)) - (-count % GROUP) * int(bits[-1])
    return 0 if b is not None else _bytes(PARAMETER_BITS * bits.size), _bytes(low)


def _bytes(bits: int) -> int:
    return -(-bits // 8)


def write(indices: Words32, code: Code, out: Bytes) -> None:
    """Write `indices` in the `code` chosen for them to `out`, which has exactly code.nbytes bytes."""
    head, split = _lengths(indices.size, code.bits, code.b)
    split += head
    low = np.empty((split - head) // 8 + 1, np.uint64)
    unary = np.zeros((out.size - split) // 8 + 1, np.uint64)
    write_streams(indices, code.bits, low, unary)
    if head:
        parameters = code.bits[:, None] >> np.arange(PARAMETER_BITS, dtype=np.uint8) & 1
        out[:head] = np.packbits(parameters, bitorder="little")
    out[head:split] = low.view(np.uint8)[: split - head]
    out[split:] = unary.view(np.uint8)[: out.size - split]


def read(data: Bytes, b: int | None, count: int, size: int) -> Words32:
    """Return the `count` >= 1 ascending indices below `size` that `data` encodes. Raises PayloadError.

    `data` must hold nothing else. If b is None, `data` starts with a b for every 32 gaps.
    """
    groups = -(-count // GROUP)
    if b is None:
        head = _bytes(PARAMETER_BITS * groups)
        if data.size < head + _bytes(count):
            raise PayloadError(f"{data.size} bytes are too few for {count} indices")
        flags = np.unpackbits(data[:head], bitorder="little")
        bits = np.packbits(flags[: PARAMETER_BITS * groups].reshape(groups, PARAMETER_BITS), axis=1, bitorder="little")[:, 0]
        spare = bool(flags[PARAMETER_BITS * groups :].any()) or int(bits.max()) > MAX_LOW_BITS
    elif b > MAX_LOW_BITS or data.size < _bytes(count * b) + _bytes(count):
        raise PayloadError(f"{data.size} bytes are too few for {count} indices of {b} bits and more")
    else:
        bits, spare = np.full(groups, b, np.uint8), False
    head, split = _lengths(count, bits, b)
    split += head
    if spare or data.size < split + _bytes(count):
        raise PayloadError(f"{data.size} bytes are too few for {count} indices, or their parameters are wrong")
    low, unary = _words(data[head:split], (split - head) // 8 + 2), _words(data[split:], (data.size - split) // 8 + 1)
    indices = np.empty(count, np.uint32)
    used, low_used = read_streams(low, unary, bits, size, indices)
    unused = int(data[split - 1]) >> (low_used % 8 or 8) if split > head else 0
    if used < 0 or _bytes(used) != data.size - split or unused:
        raise PayloadError(f"{data.size} bytes do not hold {count} ascending indices below {size}, and nothing else")
    return indices


def _words(data: Bytes, count: int) -> Words:
    words = np.zeros(count, np.uint64)
    words.view(np.uint8)[: data.size] = data
    return words
