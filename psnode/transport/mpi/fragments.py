"""The split of a message into MPI messages: either the whole message, or its total length followed by pieces.

Pieces let several ranks share a link evenly (`piece_size`). They are also needed for a message of 2 GiB or more, which cannot
be one MPI message, since MPI counts bytes with signed 32-bit integers. The lowest two bits of an MPI tag give the kind of the
part. The largest tag, 4 * 4095 + 3 = 16383, is below the 32767 that every MPI supports.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from psnode.transport.base import Bytes

LARGEST_PIECE_BYTES = 1 << 30
_TOTAL = struct.Struct("<Q")
TOTAL_BYTES = _TOTAL.size


class Fragment(IntEnum):
    """The kind of an MPI message: a whole message, the total length of a message, a piece of it, or a farewell."""

    WHOLE = 0
    TOTAL = 1  # the length of a message whose pieces follow, 8 bytes little-endian
    PIECE = 2
    FAREWELL = 3  # a message between transports, see farewell.py


def join_tag(tag: int, part: Fragment) -> int:
    """Return the MPI tag for a part of a message with tag `tag`."""
    return tag << 2 | part


def split_tag(mpi_tag: int) -> tuple[int, Fragment]:
    """Return the message's tag and the kind of part that an MPI tag encodes."""
    return mpi_tag >> 2, Fragment(mpi_tag & 3)


class Part(NamedTuple):
    """An MPI message: its bytes and its tag. `last` is True if it is the last part of a message."""

    data: Bytes
    mpi_tag: int
    last: bool


def cut(data: Bytes, tag: int, size: Callable[[], int], whole: int = 0) -> Iterator[Part]:
    """Yield the MPI messages that carry `data`.

    `size`: returns, when called, the largest size in bytes of the next piece; it may change from call to call. A message of up
    to `whole` bytes is not cut, even if it is larger than a piece.
    """
    if data.size <= max(size(), whole):
        yield Part(data, join_tag(tag, Fragment.WHOLE), True)
        return
    yield Part(np.frombuffer(_TOTAL.pack(data.size), np.uint8), join_tag(tag, Fragment.TOTAL), False)
    start = 0
    while start < data.size:
        stop = min(data.size, start + size())
        yield Part(data[start:stop], join_tag(tag, Fragment.PIECE), stop == data.size)
        start = stop


def read_total(data: Bytes) -> int:
    """Return the length that a TOTAL part announces."""
    total: int = _TOTAL.unpack(data.tobytes())[0]
    return total
