"""The loops of tbq. Each block of 20480 coordinates has the smaller of two forms, dense or sparse.

A dense block packs five digits into a byte. A sparse block has 2 bytes for each value sent.

    block   uint16 m: the number of values sent, or 65535 for a dense block
            m times uint16: place in the block, plus 32768 where negative, ascending;
            or digits 0 (-tau), 1 (0), 2 (tau), five to a byte: see psnode.codecs.kernels.trits

The values to send are found by comparing bits, because the bits of magnitudes, as integers, are ordered like the magnitudes.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes, Floats, Int32s, Words, Words16
from psnode.codecs.kernels.bitmasks import LANES, MAGNITUDE, lowest_one, mask_at_least, ones
from psnode.codecs.kernels.cache_hints import copy_to
from psnode.codecs.kernels.finite import INFINITY_BITS
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.kernels.llvm.instructions import viewed
from psnode.codecs.kernels.parts import BEGIN, PartTable, add_parts
from psnode.codecs.kernels.ternary import add, write
from psnode.codecs.kernels.trits import DIGITS, is_packed, pack, unpack

BLOCK = 20480
SHARE = 0.88  # maximises 4 t pdf(t) - 2 t^2 (1 - cdf(t)), the energy that thresholds +-t remove from N(0, 1)
_DENSE = 0xFFFF
_NEGATIVE = 0x8000


@kernel
def _find(v: Floats, threshold: np.uint32, masks: Words) -> int:
    """Set bit j mod 64 of masks[j // 64] to 1 if the bits of |v[j]| are at least `threshold`. Return the number of ones."""
    bits = viewed(v, np.uint32)
    full = bits.size // LANES
    sent = 0
    for g in range(full):
        masks[g] = mask_at_least(bits, LANES * g, threshold)
        sent += ones(masks[g])
    if bits.size > LANES * full:
        row = np.zeros(LANES, np.uint32)
        copy_to(bits[LANES * full :], row)
        masks[full] = mask_at_least(row, 0, threshold)
        sent += ones(masks[full])
    return sent


@kernel
def _list(v: Floats, masks: Words, entries: Words16) -> bool:
    """Write the entries of a block for the ones in `masks`.

    Return True if their values are finite.
    """
    bits = viewed(v, np.uint32)
    worst = np.uint32(0)
    k = 0
    for g in range((v.size + LANES - 1) // LANES):
        mask = masks[g]
        while mask:
            place = LANES * g + lowest_one(mask)
            mask &= mask - np.uint64(1)
            worst = max(worst, np.uint32(bits[place] & np.uint32(MAGNITUDE)))
            entries[k] = place | ((bits[place] >> 31) << 15)
            k += 1
    return bool(worst < np.uint32(INFINITY_BITS))


@kernel
def to_digits(v: Floats, threshold: np.float32, digits: Bytes) -> bool:
    """Write the digits of `v` to `digits`, followed by zeros. Return True if all values are finite."""
    bits = viewed(v, np.uint32)
    worst = np.uint32(0)
    for i in range(v.size):
        digits[i] = np.uint8(np.int32(1) + np.int32(v[i] >= threshold) - np.int32(v[i] <= -threshold))
        worst = max(worst, np.uint32(bits[i] & np.uint32(MAGNITUDE)))
    digits[v.size :] = 0
    return bool(worst < np.uint32(INFINITY_BITS))


@kernel
def _add_entries(entries: Words16, tau: np.float32, out: Floats) -> None:
    for entry in entries:
        out[entry & (_NEGATIVE - 1)] += -tau if entry & _NEGATIVE else tau


@kernel
def encode(
    x: Floats, parts: PartTable, tau: np.float32, threshold: np.float32, body: Bytes, error: Floats, copy: bool
) -> tuple[int, int]:  # fmt: skip
    """Write blocks to `body`. Return the number of bytes, and the number of coordinates coded.

    All coordinates are coded unless a value is not finite. `error` becomes x - decoded for the coordinates coded, unless it is
    empty. `parts` are first added to their target, the memory of `x`. `copy` is True if `error` does not share the memory of
    `x`.
    """
    digits, masks = np.empty(BLOCK, np.uint8), np.empty(BLOCK // LANES, np.uint64)
    limit = viewed(np.full(1, threshold, np.float32), np.uint32)[0]
    used, cursor = 0, BEGIN
    for start in range(0, x.size, BLOCK):
        if len(parts) > 1:
            cursor = add_parts(parts, cursor, start, min(start + BLOCK, x.size))
            if cursor < 0:
                return used, start
        v, lost = x[start : start + BLOCK], error[start : start + BLOCK]
        if copy:
            copy_to(v, lost)
        sent, dense = _find(v, limit, masks), (v.size + DIGITS - 1) // DIGITS
        sparse = 2 * sent < dense
        viewed(body[used : used + 2], np.uint16)[0] = sent if sparse else _DENSE
        used += 2
        if sparse:
            entries = viewed(body[used : used + 2 * sent], np.uint16)
            finite = _list(v, masks, entries)
            if error.size:
                _add_entries(entries, -tau, lost)
            used += 2 * sent
        else:
            finite = to_digits(v, threshold, digits)
            pack(digits, body[used : used + dense])
            if error.size:
                add(digits, -tau, lost)
            used += dense
        if not finite:
            return used, start
    return used, x.size


@kernel
def decode(body: Bytes, tau: np.float32, out: Floats, adding: bool) -> None:
    """Write the decoded values of a valid body to `out`, or add them to `out`."""
    digits = np.empty(BLOCK, np.uint8)
    used = 0
    for start in range(0, out.size, BLOCK):
        part = out[start : start + BLOCK]
        sent = int(body[used]) + 256 * int(body[used + 1])
        used += 2
        if sent == _DENSE:
            dense = (part.size + DIGITS - 1) // DIGITS
            unpack(body[used : used + dense], digits)
            used += dense
            if adding:
                add(digits, tau, part)
            else:
                write(digits, tau, part)
        else:
            if not adding:
                part[:] = 0
            _add_entries(viewed(body[used : used + 2 * sent], np.uint16), tau, part)
            used += 2 * sent


@kernel
def pack_block(digits: Bytes, out: Bytes) -> int:
    """Write a full block to `out`. Return the number of bytes written."""
    sent = 0
    for place in range(BLOCK):
        sent += int(digits[place] != np.uint8(1))
    sparse = 2 * sent < BLOCK // DIGITS
    viewed(out[:2], np.uint16)[0] = sent if sparse else _DENSE
    if sparse:
        entries, k = viewed(out[2 : 2 + 2 * sent], np.uint16), 0
        for place in range(BLOCK):
            if digits[place] != np.uint8(1):
                entries[k] = place | (_NEGATIVE if digits[place] == np.uint8(0) else 0)
                k += 1
        return 2 + 2 * sent
    pack(digits, out[2 : 2 + BLOCK // DIGITS])
    return 2 + BLOCK // DIGITS


@kernel
def unpack_block(data: Bytes, digits: Bytes) -> int:
    """Unpack the valid block at the start of `data`, and return the number of bytes read. This is the inverse of pack_block."""
    sent = int(data[0]) + 256 * int(data[1])
    if sent == _DENSE:
        unpack(data[2 : 2 + BLOCK // DIGITS], digits)
        return 2 + BLOCK // DIGITS
    digits[:BLOCK] = 1
    for entry in viewed(data[2 : 2 + 2 * sent], np.uint16):
        digits[entry & (_NEGATIVE - 1)] = 0 if entry & _NEGATIVE else 2
    return 2 + 2 * sent


@kernel
def length(body: Bytes, size: int) -> int:
    """Return the number of bytes of the blocks of `size` values at the start of `body`, which must be valid."""
    used = 0
    for start in range(0, size, BLOCK):
        sent = int(body[used]) + 256 * int(body[used + 1])
        used += 2 + ((min(BLOCK, size - start) + DIGITS - 1) // DIGITS if sent == _DENSE else 2 * sent)
    return used


@kernel
def block_starts(body: Bytes, blocks: int) -> Int32s:
    """Return the offsets of `blocks` full blocks at the start of `body`, which must be valid, and the end of the last one."""
    starts = np.zeros(blocks + 1, np.int32)
    for b in range(blocks):
        starts[b + 1] = starts[b] + length(body[starts[b] :], BLOCK)
    return starts


@kernel
def is_valid(body: Bytes, size: int) -> bool:
    """Return True if `body` consists of valid blocks for exactly `size` values.

    A dense block is valid even if a sparse one would be smaller.
    """
    used = 0
    for start in range(0, size, BLOCK):
        count = min(BLOCK, size - start)
        dense = (count + DIGITS - 1) // DIGITS
        if used + 2 > body.size:
            return False
        sent = int(body[used]) + 256 * int(body[used + 1])
        used += 2
        length = dense if sent == _DENSE else 2 * sent
        if used + length > body.size:
            return False
        if sent == _DENSE:
            if not is_packed(body[used : used + length], count):
                return False
        elif 2 * sent >= dense:
            return False
        else:
            last = -1
            for entry in viewed(body[used : used + length], np.uint16):
                place = int(entry) & (_NEGATIVE - 1)
                if place <= last or place >= count:
                    return False
                last = place
        used += length
    return used == body.size
