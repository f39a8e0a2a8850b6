"""Division of a vector of any length into superblocks: up to 32 blocks of 2^k values, which are coded in parallel.

As long as 32 blocks of the longest allowed length fit, they are used. Then 32 blocks of each shorter length down to 2^10
follow, if they fit. Then fewer than 32 blocks of 2^10 follow, as many as fit, and one block each of 2^9, 2^8, 2^7 and 2^6, if
it fits. Any remaining values are padded with zeros to a block of 2^6. Value i of a superblock of m blocks belongs to block i
mod m. Every 2^16 neighbouring values of a superblock share a scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from psnode.codecs.polarcodes.vectors import LANES

SCALED = 1 << 16
_FEW = 10
_LEAST = 6


class Superblock(NamedTuple):
    """A superblock: values start..stop-1, in `lanes` blocks of 2^log_length values, at `rate` bits per value."""

    start: int
    stop: int
    log_length: int
    lanes: int
    rate: float

    @property
    def scales(self) -> int:
        """The number of scales of the superblock."""
        return -(-(self.stop - self.start) // SCALED)


def superblocks(size: int, longest: int, rate: float, start: int = 0) -> Iterator[Superblock]:
    """Yield the superblocks of `size` values, the first of which is value `start`. Blocks have at most 2^`longest` values."""
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
