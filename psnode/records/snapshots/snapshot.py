"""Values of tensors at one moment, which are read while training continues to change the tensors part by part.

A thread calls `protect` before it changes a part. Bytes of the part that have already been read need no protection. The
remaining bytes are copied if there is memory for copies; otherwise the thread waits until they have been read. The reader
thus sees the values of the moment at which the snapshot was made. If the memory suffices, a thread waits only for the copy
(docs/decisions/checkpoints-beside-training.md).
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from psnode.records.snapshots.snapshot_memory import Allocation, SnapshotMemory
from psnode.tasks.tensor_bytes import memory_of

if TYPE_CHECKING:
    import torch

Raw = npt.NDArray[np.uint8]


class _Piece:
    """Bytes of a tensor (`live`) that change together.

    The first `read` bytes have been read; `copy`, if there is one, begins with the byte at `base`.
    """

    __slots__ = ("base", "copy", "live", "part", "read")

    def __init__(self, live: Raw, part: int | None) -> None:
        self.live, self.part = live, part
        self.read = self.base = 0
        self.copy: Allocation | None = None

    @property
    def rest(self) -> int:
        return self.live.size - self.read


class Snapshot:
    """The present values of `tensors`, which are contiguous and on the host.

    `parts[i]` lists the tensors whose memory may change together after the call `protect(i)`. Memory outside all parts must not
    change. Only one thread reads, and it reads each tensor from its beginning to its end. Any thread may call `protect`.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], parts: Sequence[Iterable[torch.Tensor]], memory: SnapshotMemory) -> None:
        self._memory = memory
        self._closed = self._changed = False
        with memory.changed:
            memory.begin()
        ranges = sorted((raw(each).__array_interface__["data"][0], each.nbytes, part) for part, held in enumerate(parts)
                        for each in held if each.nbytes and each.is_contiguous())  # fmt: skip
        self._pieces: dict[int, list[_Piece]] = {}
        self._of_part: dict[int, list[_Piece]] = {}
        for tensor in tensors:
            if tensor.nbytes and tensor.data_ptr() not in self._pieces:
                self._pieces[tensor.data_ptr()] = found = _cut(raw(tensor), ranges)
                for piece in found:
                    if piece.part is not None:
                        self._of_part.setdefault(piece.part, []).append(piece)

    def protect(self, part: int) -> None:
        """Block until `part` may be changed. Its unread bytes are copied or, if there is no memory for copies, read first."""
        if part in self._of_part:
            with self._memory.changed:
                self._changed = True
            for piece in self._of_part.pop(part):
                self._save(piece)

    def _save(self, piece: _Piece) -> None:
        memory = self._memory
        with memory.changed:
            while not self._closed and piece.rest:
                if (copy := memory.take(piece.rest)) is not None:
                    break
                memory.changed.wait()
            else:
                return
            base = piece.read
        np.copyto(copy.raw, piece.live[base:])
        with memory.changed:
            if self._closed or not piece.rest:
                memory.give_back(copy)
            else:
                piece.copy, piece.base = copy, base

    def read(self, tensor: torch.Tensor, start: int, out: Raw) -> None:
        """Copy bytes [start, start + out.size) of a tensor to `out`, as they were when the snapshot was made.

        A tensor outside the snapshot is copied as it is now. Raises OSError if the snapshot has been closed.
        """
        place = 0
        for piece in self._pieces.get(tensor.data_ptr()) or [_Piece(raw(tensor), None)]:
            first, last = max(start, place), min(start + out.size, place + piece.live.size)
            if first < last:
                self._read(piece, first - place, out[first - start : last - start])
            place += piece.live.size

    def _read(self, piece: _Piece, start: int, out: Raw) -> None:
        while True:
            with self._memory.changed:
                if self._closed:
                    raise OSError(errno.ECANCELED, "it was given up")
                copy, base = piece.copy, piece.base
            np.copyto(out, (piece.live if copy is None else copy.raw)[start - base : start - base + out.size])
            if piece.part is None:
                return
            with self._memory.changed:
                if piece.copy is not copy:  # the live bytes may have changed during the reading: read the copy
                    continue
                piece.read = start + out.size
                if not piece.rest and copy is not None:
                    piece.copy = None
                    self._memory.give_back(copy)
                self._memory.changed.notify_all()
                return

    def rewind(self) -> bool:
        """Restart the reading from the beginning and return True, or return False if any part has been protected."""
        with self._memory.changed:
            if not self._changed:
                for piece in (each for found in self._pieces.values() for each in found):
                    piece.read = 0
            return not self._changed

    def close(self) -> None:
        """Release the copies and wake the waiting threads. No reading is possible afterwards.

        Any thread may call this repeatedly.
        """
        with self._memory.changed:
            self._closed = True
            for piece in (each for found in self._pieces.values() for each in found):
                if piece.copy is not None:
                    self._memory.give_back(piece.copy)
                    piece.copy = None
            self._memory.rest()
            self._memory.changed.notify_all()


def size_of(parts: Sequence[Iterable[torch.Tensor]]) -> int:
    """Return the number of bytes of `parts`, which is the maximum that their copies can take (see Snapshot)."""
    return sum(each.nbytes for held in parts for each in held)


def raw(tensor: torch.Tensor) -> Raw:
    """Return the bytes of a contiguous tensor on the host as an array that shares its memory."""
    return memory_of(tensor)


def _cut(live: Raw, ranges: Sequence[tuple[int, int, int]]) -> list[_Piece]:
    """Cut the bytes of a tensor into pieces, each of which belongs to one part. `ranges`: address, size and part, ascending."""
    begin, place, pieces = live.__array_interface__["data"][0], 0, []
    index = max(0, bisect_right(ranges, (begin, 1 << 62, 0)) - 1)
    while place < live.size:
        while index < len(ranges) and ranges[index][0] + ranges[index][1] <= begin + place:
            index += 1
        start, size, part = ranges[index] if index < len(ranges) else (begin + live.size, 0, 0)
        inside = start <= begin + place
        stop = min(live.size, (start + size if inside else start) - begin)
        pieces.append(_Piece(live[place:stop], part if inside else None))
        place = stop
    return pieces
