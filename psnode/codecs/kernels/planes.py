"""Codes of b bits, packed 512 at a time in planes, so that one operation packs or unpacks all lanes of a vector.

The number of bits b is written as a sum of some of the widths 8, 8, 4, 2, 1, the largest first. The plane of the first width
holds the lowest bits of every code, and each further plane holds the bits above them. Let a block have t codes, which are 512,
or fewer in the last block. Its plane of width w takes S = ceil(t w / 8) bytes: bits w k .. w k + w - 1 of byte j belong to code
j + S k. The planes of a block follow one another.

In kernels, a block of codes is a row of bytes. If b > 8, it consists of two rows (low and high bytes), and takes two calls. In
full blocks, four codes are processed as one uint32, in which no field crosses a byte.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Bytes, Words32
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import viewed

BLOCK = 512
ROW = BLOCK + 8  # a plane's last byte may extend past the last code
_STEP = BLOCK // 32  # uint32 words in a plane of width 1
_ONES = 0x01010101


class Rows(NamedTuple):
    """The low and the high bytes of the codes of a block, as bytes and as words of four bytes."""

    low: Bytes
    low_words: Words32
    high: Bytes
    high_words: Words32


def packed_nbytes(count: int, bits: int) -> int:
    """Return the number of bytes that `count` packed codes of `bits` bits (0..16) take."""
    rest = count % BLOCK
    widths = [8] * (bits // 8) + [width for width in (4, 2, 1) if bits % 8 & width]
    return count // BLOCK * (BLOCK // 8) * bits + sum(-(-rest * width // 8) for width in widths)


def most_nbytes(count: int, bits: int) -> int:
    """Return the largest number of bytes that `count` packed codes take, if they have 1 to `bits` bits.

    A small number of codes may take more bytes with fewer bits, because the bits then fill more planes.
    """
    return max((packed_nbytes(count, width) for width in range(1, bits + 1)), default=0)


@inlined
def new_rows() -> Rows:
    """Return rows of zeros for one block."""
    low, high = np.zeros(ROW // 4, np.uint32), np.zeros(ROW // 4, np.uint32)
    return Rows(viewed(low, np.uint8), low, viewed(high, np.uint8), high)


@inlined
def _pack4(codes: Words32, out: Words32) -> None:
    mask = np.uint32(15 * _ONES)
    for j in range(4 * _STEP):
        out[j] = (codes[j] & mask) | ((codes[4 * _STEP + j] & mask) << np.uint32(4))


@inlined
def _pack2(codes: Words32, shift: np.uint32, out: Words32) -> None:
    mask = np.uint32(3 * _ONES)
    for j in range(2 * _STEP):
        a = ((codes[j] >> shift) & mask) | (((codes[2 * _STEP + j] >> shift) & mask) << np.uint32(2))
        b = ((codes[4 * _STEP + j] >> shift) & mask) | (((codes[6 * _STEP + j] >> shift) & mask) << np.uint32(2))
        out[j] = a | (b << np.uint32(4))


@inlined
def _pack1(codes: Words32, shift: np.uint32, out: Words32) -> None:
    mask = np.uint32(_ONES)
    for j in range(_STEP):
        a = ((codes[j] >> shift) & mask) | (((codes[_STEP + j] >> shift) & mask) << np.uint32(1))
        b = ((codes[2 * _STEP + j] >> shift) & mask) | (((codes[3 * _STEP + j] >> shift) & mask) << np.uint32(1))
        c = ((codes[4 * _STEP + j] >> shift) & mask) | (((codes[5 * _STEP + j] >> shift) & mask) << np.uint32(1))
        d = ((codes[6 * _STEP + j] >> shift) & mask) | (((codes[7 * _STEP + j] >> shift) & mask) << np.uint32(1))
        out[j] = (a | (b << np.uint32(2))) | ((c | (d << np.uint32(2))) << np.uint32(4))


@inlined
def pack_row(codes: Words32, bits: int, out: Words32) -> None:
    """Pack 512 codes below 2**bits, one per byte, into out[: 16 * bits], for bits <= 8."""
    if bits == 8:
        for j in range(8 * _STEP):
            out[j] = codes[j]
    if bits & 4:
        _pack4(codes, out)
    if bits & 2:
        _pack2(codes, np.uint32(bits & 4), out[(bits & 4) * _STEP :])
    if bits & 1:
        _pack1(codes, np.uint32(bits & 6), out[(bits & 6) * _STEP :])


@inlined
def _unpack4(data: Words32, codes: Words32) -> None:
    mask = np.uint32(15 * _ONES)
    for j in range(4 * _STEP):
        codes[j] = data[j] & mask
        codes[4 * _STEP + j] = (data[j] >> np.uint32(4)) & mask


@inlined
def _unpack2(data: Words32, shift: np.uint32, codes: Words32) -> None:
    mask = np.uint32(3 * _ONES)
    for j in range(2 * _STEP):
        codes[j] |= (data[j] & mask) << shift
        codes[2 * _STEP + j] |= ((data[j] >> np.uint32(2)) & mask) << shift
        codes[4 * _STEP + j] |= ((data[j] >> np.uint32(4)) & mask) << shift
        codes[6 * _STEP + j] |= ((data[j] >> np.uint32(6)) & mask) << shift


@inlined
def _unpack1(data: Words32, shift: np.uint32, codes: Words32) -> None:
    mask = np.uint32(_ONES)
    for j in range(_STEP):
        codes[j] |= (data[j] & mask) << shift
        codes[_STEP + j] |= ((data[j] >> np.uint32(1)) & mask) << shift
        codes[2 * _STEP + j] |= ((data[j] >> np.uint32(2)) & mask) << shift
        codes[3 * _STEP + j] |= ((data[j] >> np.uint32(3)) & mask) << shift
        codes[4 * _STEP + j] |= ((data[j] >> np.uint32(4)) & mask) << shift
        codes[5 * _STEP + j] |= ((data[j] >> np.uint32(5)) & mask) << shift
        codes[6 * _STEP + j] |= ((data[j] >> np.uint32(6)) & mask) << shift
        codes[7 * _STEP + j] |= ((data[j] >> np.uint32(7)) & mask) << shift


@inlined
def unpack_row(data: Words32, bits: int, codes: Words32) -> None:
    """Unpack 512 codes into codes[:128], four codes per word. This is the inverse of pack_row."""
    if bits == 8:
        for j in range(8 * _STEP):
            codes[j] = data[j]
    elif bits & 4:
        _unpack4(data, codes)
    else:
        for j in range(8 * _STEP):
            codes[j] = 0
    if bits & 2:
        _unpack2(data[(bits & 4) * _STEP :], np.uint32(bits & 4), codes)
    if bits & 1:
        _unpack1(data[(bits & 6) * _STEP :], np.uint32(bits & 6), codes)


@inlined
def pack_tail(codes: Bytes, count: int, bits: int, out: Bytes) -> int:
    """Pack codes[:count], which are below 2**bits, and return the number of bytes. `count` is below 512, and `bits` at most 8.

    codes[count:] is overwritten with 0.
    """
    codes[count:] = 0
    used = 0
    for width in (8, 4, 2, 1):
        if bits & width:
            stride = (count * width + 7) // 8
            shift = bits & ~(2 * width - 1)
            for j in range(stride):
                byte = 0
                for k in range(8 // width):
                    byte |= ((codes[k * stride + j] >> shift) & ((1 << width) - 1)) << (width * k)
                out[used + j] = byte
            used += stride
    return used


@inlined
def unpack_tail(data: Bytes, count: int, bits: int, codes: Bytes) -> int:
    """Unpack `count` codes, and return the number of bytes read. This is the inverse of pack_tail."""
    codes[:] = 0
    used = 0
    for width in (8, 4, 2, 1):
        if bits & width:
            stride = (count * width + 7) // 8
            shift = bits & ~(2 * width - 1)
            for j in range(stride):
                for k in range(8 // width):
                    codes[k * stride + j] |= ((data[used + j] >> (width * k)) & ((1 << width) - 1)) << shift
            used += stride
    return used


@inlined
def pack_codes(codes: Words32, count: int, bits: int, rows: Rows, packed: Words32, tail: Bytes) -> None:
    """Pack codes of at most 16 bits, one per word, into `packed` if `count` is 512, else into `tail`."""
    for i in range(BLOCK):
        rows.low[i] = np.uint8(codes[i])
    if bits > 8:
        for i in range(BLOCK):
            rows.high[i] = np.uint8(codes[i] >> np.uint32(8))
    if count == BLOCK:
        pack_row(rows.low_words, min(bits, 8), packed)
        if bits > 8:
            pack_row(rows.high_words, bits - 8, packed[8 * _STEP :])
    else:
        used = pack_tail(rows.low, count, min(bits, 8), tail)
        if bits > 8:
            pack_tail(rows.high, count, bits - 8, tail[used:])


@inlined
def unpack_codes(codes: Words32, count: int, bits: int, rows: Rows, packed: Words32, tail: Bytes) -> None:
    """Overwrite all 512 codes with the unpacked codes. This is the inverse of pack_codes."""
    if count == BLOCK:
        unpack_row(packed, min(bits, 8), rows.low_words)
        if bits > 8:
            unpack_row(packed[8 * _STEP :], bits - 8, rows.high_words)
    else:
        used = unpack_tail(tail, count, min(bits, 8), rows.low)
        if bits > 8:
            unpack_tail(tail[used:], count, bits - 8, rows.high)
    for i in range(BLOCK):
        codes[i] = np.uint32(rows.low[i])
    if bits > 8:
        for i in range(BLOCK):
            codes[i] |= np.uint32(rows.high[i]) << np.uint32(8)


@kernel
def repack(source: Bytes, before: int, bits: int, target: Bytes, after: int) -> None:
    """Write a packed block of `before` codes to `target` as a packed block of `after` codes.

    If `after` is larger, zeros are appended. If it is smaller, only the first codes are kept. `before` and `after` are at most
    512, and `bits` is at most 16.
    """
    codes, kept = np.zeros(ROW, np.uint8), min(before, after)
    start, end, left = 0, 0, bits
    while left:
        width = 8
        while width > left:
            width >>= 1
        stride, step = (before * width + 7) // 8, (after * width + 7) // 8
        for k in range(8 // width):
            for j in range(stride):
                codes[k * stride + j] = (source[start + j] >> (width * k)) & ((1 << width) - 1)
        for i in range(kept, ROW):
            codes[i] = 0
        for j in range(step):
            byte = 0
            for k in range(8 // width):
                byte |= codes[k * step + j] << (width * k)
            target[end + j] = byte
        start, end, left = start + stride, end + step, left - width
