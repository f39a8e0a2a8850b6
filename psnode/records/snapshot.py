"""Values of tensors at one moment, read while their memory goes on changing, part by part.

A thread calls `protect` before it changes a part. The data that was read until then is released; the rest is copied if there is
memory for copies, and otherwise the thread waits for the reader. So a reader sees the values of that moment, and threads wait for
no more than a copy if memory suffices (docs/decisions/checkpoints-beside-training.md).
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from psnode.records.snapshot_memory import Allocation, SnapshotMemory
from psnode.tasks.tensor_memory import memory_of

if TYPE_CHECKING:
    import torch

Raw = npt.NDArray[np.uint8]


class _Piece:
    """Bytes of a tensor that change together, `live`. The first `read` of them have been read; `copy` begins with the byte at
    `base`."""

    __slots__ = ("base", "copy", "live", "part", "read")

    def __init__(self, live: Raw, part: int | None) -> None:
        self.live, self.part = live, part
        self.read = self.base = 0
        self.copy: Allocation | None = None

    @property
    def rest(self) -> int:
        return self.live.size - self.read


class Snapshot:
    """The present values of `tensors`, which are contiguous and on the host. `parts`: by index, memory that changes together.

    Memory outside all parts must not change. One thread reads, each tensor from its beginning to its end; any thread may
    `protect`.
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
        """Return when `part` may be changed: its unread bytes have been copied, or read while this call waits for memory."""
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
        """Copy bytes [start, start + out.size) of a tensor's values to `out`; for a tensor outside the snapshot, its present
        ones.

        Raises OSError if the snapshot was closed meanwhile.
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
                if piece.copy is not copy:  # it may have changed during the reading
                    continue
                piece.read = start + out.size
                if not piece.rest and copy is not None:
                    piece.copy = None
                    self._memory.give_back(copy)
                self._memory.changed.notify_all()
                return

    def rewind(self) -> bool:
        """Begin to read again from the start if no part was protected so far; otherwise return False."""
        with self._memory.changed:
            if not self._changed:
                for piece in (each for found in self._pieces.values() for each in found):
                    piece.read = 0
            return not self._changed

    def close(self) -> None:
        """End the reading: release the copies and the waiting threads. Any thread may call it, more than once."""
        with self._memory.changed:
            self._closed = True
            for piece in (each for found in self._pieces.values() for each in found):
                if piece.copy is not None:
                    self._memory.give_back(piece.copy)
                    piece.copy = None
            self._memory.rest()
            self._memory.changed.notify_all()


def size_of(parts: Sequence[Iterable[torch.Tensor]]) -> int:
    """Return the maximum bytes for copies of `parts`, see Snapshot."""
    return sum(each.nbytes for held in parts for each in held)


def raw(tensor: torch.Tensor) -> Raw:
    """Return the bytes of a contiguous tensor on the host, which share its memory."""
    return memory_of(tensor)


def _cut(live: Raw, ranges: Sequence[tuple[int, int, int]]) -> list[_Piece]:
    """Return the bytes of a tensor by the parts that they belong to. `ranges`: address, size and part, ascending."""
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
