"""The bytes of a polar payload after its fields: classes, then scales, raw bits and words.

Functions that read raise PayloadError.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Bytes, Floats, Words, Words16
from psnode.codecs.entropy.ans import Ans
from psnode.codecs.polarcodes import energy_groups, group_order, stream
from psnode.codecs.polarcodes.lanes import Masks
from psnode.codecs.polarcodes.superblocks import Superblock, superblocks
from psnode.codecs.stages import padded, read_section, write_section
from psnode.errors import PayloadError


def class_blocks(ids: Bytes, longest: int) -> list[Superblock]:
    """Return the superblocks of all classes, one class after another. The blocks are short, because classes are small."""
    blocks: list[Superblock] = []
    start = 0
    for rate, size in zip(energy_groups.LADDER[1:], energy_groups.sizes(ids), strict=True):
        blocks += superblocks(size, min(longest, energy_groups.LONGEST), rate, start)
        start += size
    return blocks


def write_classes(classes: group_order.EnergyClasses, body: Bytes) -> int:
    """Write the description of classes to `body`. Return the number of bytes written."""
    start = write_section(body, Ans().compress(classes.ids, len(energy_groups.LADDER), body[4:]))
    flags = np.packbits(classes.taps, bitorder="little")
    end = start + padded(flags.size)
    body[start:end] = 0
    body[start : start + flags.size] = flags
    return end


def read_classes(body: Bytes, size: int) -> tuple[group_order.EnergyClasses, Bytes]:
    """Return the classes of an array of `size` values, and the rest of `body`."""
    coded, rest = read_section(body)
    ids = np.empty(-(-size // group_order.GROUP), np.uint8)
    if not ids.size:
        raise PayloadError("polar: nothing is there to be sorted")
    Ans().expand(coded, ids, len(energy_groups.LADDER))
    chunks = -(-size // group_order.CHUNK)
    end = padded(-(-chunks // 8))
    flags = np.unpackbits(rest[:end], bitorder="little")
    if flags.size < 8 * end or flags[chunks:].any():
        raise PayloadError(f"polar: the order of {chunks} pieces is cut off, or not padded with zeros")
    return group_order.EnergyClasses(flags[:chunks].astype(np.bool_), ids), rest[end:]


class CodedStream(NamedTuple):
    """The parts of a coded vector: scales, raw bits, and words of the coder."""

    scales: Floats
    raw: Masks
    words: Words16

    def put(self, body: Bytes) -> int:
        """Write the stream to `body`. Return the number of bytes written."""
        start = 0
        for part in self:
            end = start + part.nbytes
            body[start:end] = part.view(np.uint8)
            start = end
        return start


def code(x: Floats, blocks: list[Superblock], rotated: bool, key: Words, decoded: Floats, *, capped: bool) -> CodedStream | None:
    """Return the stream for 1-D `x`, or None if a value is not finite. stream.write describes `decoded` and `capped`."""
    most = stream.extent(blocks, [True] * len(blocks))
    scales = np.zeros(sum(block.scales for block in blocks), np.float32)
    raw = np.zeros(-(-most.raw // 32) + 2, np.uint32)
    words = np.empty(stream.allowed_words(most) + 2, np.uint16)
    bits, used = stream.write(x, blocks, rotated, key, scales, raw, words, decoded, capped=capped)
    return CodedStream(scales, raw[:bits], words[:used]) if bits != stream.NOT_FINITE else None


def read(body: Bytes, blocks: list[Superblock], rotated: bool, key: Words, out: Floats) -> None:
    """Overwrite 1-D `out` with the values that `body` encodes. This is the inverse of `code` and `put`."""
    start = 4 * sum(block.scales for block in blocks)
    if body.size < start:
        raise PayloadError(f"polar: {body.size} bytes end inside {start // 4} scales")
    scales = body[:start].view(np.float32)
    if not np.isfinite(scales).all() or np.signbit(scales).any():
        raise PayloadError("polar: a scale is negative or not finite")
    found = stream.extent(blocks, stream.live_ones(blocks, scales))
    middle = start + 4 * -(-found.raw // 32)
    coded = body.size - middle
    if coded % 2 or not 4 * found.lanes <= coded <= 2 * stream.allowed_words(found):
        raise PayloadError(f"polar: a body of {body.size} bytes cannot hold {out.size} values in {len(blocks)} superblocks")
    raw, words = body[start:middle].view(np.uint32), body[middle:].view(np.uint16)
    if found.raw % 32 and int(raw[-1]) >> found.raw % 32:
        raise PayloadError("polar: the raw bits are not padded with zeros")
    raw = np.concatenate([raw, np.zeros(1, np.uint32)])
    if not stream.read(blocks, rotated, key, scales, raw, words, out):
        raise PayloadError(f"polar: {words.size} words are not the code of {out.size} values")
