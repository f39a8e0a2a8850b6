"""One bit a coordinate: packing signs, and turning them into one of two values.

Bit i mod 8 of byte i // 8 belongs to coordinate i and is 1 where it is negative. The signs of zeros, -0.0 too, are drawn by a
coin, so that a coordinate that is always zero is pushed neither way: they are bit i mod 32 of word i // 32 of the stream, the
words in the order in which `fill` makes them.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes, Floats, Words32
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.memory import AHEAD, fetch_row_to_write, wide
from psnode.codecs.kernels.sign_lanes import GROUP, add_levels, put_levels, store_masks

ROW = 512


@inlined
def pack_row(values: Words32, start: int, bits: Bytes, zero: Bytes, at: int) -> None:
    """Of the 512 float32 with values[start:], the sign bits to bits[at:at+64] and the zeros to zero[at:at+64]."""
    for g in range(ROW // GROUP):
        store_masks(values, start + GROUP * g, bits, zero, at + 8 * g)


@kernel
def pack_rest(row: Words32, count: int, bits: Bytes, zero: Bytes) -> None:
    """pack_row for the first `count` of 512 values; `bits` and `zero` have ceil(count / 8) bytes."""
    masks = np.zeros(ROW // 4, np.uint8)
    pack_row(row, 0, masks[: ROW // 8], masks[ROW // 8 :], 0)
    for j in range(bits.size):
        last = np.uint8((1 << min(count - 8 * j, 8)) - 1)
        bits[j] = masks[j] & last
        zero[j] = masks[ROW // 8 + j] & last


@kernel
def some(zero: Bytes) -> bool:
    """True if any bit is 1."""
    found = np.uint8(0)
    for j in range(zero.size):
        found |= zero[j]
    return bool(found)


@kernel
def count(bits: Bytes) -> int:
    """Number of bits that are 1."""
    total = 0
    for j in range(bits.size):
        byte = np.uint8(bits[j])
        byte = np.uint8(byte - ((byte >> np.uint8(1)) & np.uint8(0x55)))
        byte = np.uint8((byte & np.uint8(0x33)) + ((byte >> np.uint8(2)) & np.uint8(0x33)))
        total += int(np.uint8((byte + (byte >> np.uint8(4))) & np.uint8(0x0F)))
    return total


@kernel
def toss(bits: Bytes, zero: Bytes, coins: Bytes) -> None:
    """Replace the bits of zeros by those of `coins`."""
    for j in range(bits.size):
        bits[j] = (bits[j] & ~zero[j]) | (coins[j] & zero[j])


@inlined
def _mask(words: Words32, group: int) -> np.uint64:
    return np.uint64(words[2 * group]) | (np.uint64(words[2 * group + 1]) << np.uint64(32))


@kernel
def apply(bits: Bytes, bucket: int, low: Floats, high: Floats, source: Floats, out: Floats) -> None:
    """out = source + level, or level alone if `source` is empty: low[i // bucket] where bit i is 1, else high[i // bucket]."""
    wide()
    words = bits[: out.size // GROUP * 8].view(np.uint32)
    for b in range(low.size):
        i = b * bucket
        stop = min(i + bucket, out.size)
        while i < stop:
            if i % GROUP == 0 and i + GROUP <= stop:
                if i % ROW == 0:
                    fetch_row_to_write(out, i + AHEAD)
                mask = _mask(words, i // GROUP)
                if source.size:
                    add_levels(mask, low[b], high[b], source, out, i)
                else:
                    put_levels(mask, low[b], high[b], out, i)
                i += GROUP
            else:
                level = low[b] if (bits[i >> 3] >> np.uint8(i & 7)) & np.uint8(1) else high[b]
                out[i] = source[i] + level if source.size else level
                i += 1
