"""The split of a message into MPI messages: either the whole message, or its total length followed by pieces.

MPI counts bytes with 32-bit integers, so a message of 2 GiB cannot be one MPI message. The lowest two bits of an MPI tag give the
kind of part. The largest tag, 4 * 4095 + 3 = 16383, is below the 32767 that every MPI supports.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

import numpy as np

from psnode.transport.base import Bytes

DEFAULT_PIECE_BYTES = 1 << 30
_TOTAL = struct.Struct("<Q")
TOTAL_BYTES = _TOTAL.size


class Fragment(IntEnum):
    """The role of an MPI message."""

    WHOLE = 0
    TOTAL = 1  # the length of a message whose pieces follow, 8 bytes little-endian
    PIECE = 2
    FAREWELL = 3  # between transports, see farewell.py


def join_tag(tag: int, part: Fragment) -> int:
    """Return the MPI tag for a part of a message with tag `tag`."""
    return tag << 2 | part


def split_tag(mpi_tag: int) -> tuple[int, Fragment]:
    """Return the message's tag and the kind of part in an MPI tag."""
    return mpi_tag >> 2, Fragment(mpi_tag & 3)


def cut(data: Bytes, tag: int, piece_bytes: int) -> Iterator[tuple[Bytes, int]]:
    """Yield the MPI messages, as (bytes, MPI tag), that carry `data`."""
    if data.size <= piece_bytes:
        yield data, join_tag(tag, Fragment.WHOLE)
        return
    yield np.frombuffer(_TOTAL.pack(data.size), np.uint8), join_tag(tag, Fragment.TOTAL)
    for start in range(0, data.size, piece_bytes):
        yield data[start : start + piece_bytes], join_tag(tag, Fragment.PIECE)


def read_total(data: Bytes) -> int:
    """Return the length that a TOTAL part announces."""
    total: int = _TOTAL.unpack(data.tobytes())[0]
    return total
