"""Cutting of a vector of any length into superblocks: up to 32 blocks of 2^k values side by side.

While 32 blocks of the longest length that is allowed fit, they are taken; then 32 of each shorter length down to 2^10 if they
fit; then as many of 2^10 as fit, fewer than 32; then one each of 2^9, 2^8, 2^7; the rest fills a block of 2^6 with zeros.
Value i of a superblock of m blocks belongs to block i mod m. Scales are those of 2^16 neighbouring values in a superblock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from psnode.codecs.polarcodes.vectors import LANES

SCALED = 1 << 16
_FEW = 10
_LEAST = 6


class Superblock(NamedTuple):
    """Values start..stop-1, in `lanes` blocks of 2^log_length, at `rate` bits a value."""

    start: int
    stop: int
    log_length: int
    lanes: int
    rate: float

    @property
    def scales(self) -> int:
        """The number of its scales."""
        return -(-(self.stop - self.start) // SCALED)


def superblocks(size: int, longest: int, rate: float, start: int = 0) -> Iterator[Superblock]:
    """The superblocks of `size` values from `start` on, blocks being at most 2^`longest` long."""
    size += start
    for log_length in range(longest, _LEAST - 1, -1):
        if log_length >= _FEW:
            block = LANES << log_length
            while size - start >= block:
                yield Superblock(start, start + block, log_length, LANES, rate)
                start += block
        lanes = (size - start) >> log_length
        if log_length <= _FEW and lanes:
            yield Superblock(start, start + (lanes << log_length), log_length, lanes, rate)
            start += lanes << log_length
    if start < size:
        yield Superblock(start, size, _LEAST, 1, rate)
