"""Values of tensors as of one moment, read while their memory goes on changing, part by part.

Whoever is about to change a part calls `protect` first. What was read by then is let go; the rest is copied, as far as there is
room for copies, and else waited for. So a reader sees the values of that moment, and nobody waits for more than a copy where
memory allows (docs/decisions/checkpoints-beside-training.md).
"""

from __future__ import annotations

import errno
import mmap
import threading
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from psnode.config.files import memory

if TYPE_CHECKING:
    import torch

Raw = npt.NDArray[np.uint8]
_SHARE = 4  # of the memory that is free, for copies


class Room:
    """Memory for the copies of a rank's snapshots: at most `limit` bytes at a time; 0: a quarter of what is free at `measure`."""

    def __init__(self, limit: int) -> None:
        self.changed = threading.Condition()
        self._limit = limit
        self._most = limit
        self.taken = 0

    def measure(self) -> None:
        """A snapshot is about to be taken: see how much is free, where no limit was given."""
        with self.changed:
            self._most = self._limit or free_memory() // _SHARE

    def has(self, size: int) -> bool:
        """True if a copy of `size` bytes may be made. Inside of `changed`."""
        return self.taken + size <= self._most


class _Piece:
    """Bytes of a tensor that change together, `live`. The first `read` of them have been; `copy` has those from `base` on."""

    __slots__ = ("base", "copy", "live", "part", "read")

    def __init__(self, live: Raw, part: int | None) -> None:
        self.live, self.part = live, part
        self.read = self.base = 0
        self.copy: Raw | None = None

    @property
    def rest(self) -> int:
        return self.live.size - self.read


class Snapshot:
    """The values that `tensors`, contiguous and on the host, have now. `parts`: by index, memory that changes together.

    Memory of no part stays as it is. One thread reads, each tensor from its beginning to its end; any threads `protect`.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], parts: Sequence[Iterable[torch.Tensor]], room: Room) -> None:
        self._room = room
        self._closed = self._changed = False
        room.measure()
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
        """Return when `part` may be changed: what has not been read of it is copied, or read while this waits for room."""
        if part in self._of_part:
            with self._room.changed:
                self._changed = True
            for piece in self._of_part.pop(part):
                self._save(piece)

    def _save(self, piece: _Piece) -> None:
        room = self._room
        with room.changed:
            room.changed.wait_for(lambda: self._closed or not piece.rest or room.has(piece.rest))
            if self._closed or not piece.rest:
                return
            base, size = piece.read, piece.rest
            room.taken += size
        copy = _fresh(size)
        np.copyto(copy, piece.live[base:])
        with room.changed:
            if self._closed or not piece.rest:
                self._give_back(size)
            else:
                piece.copy, piece.base = copy, base

    def read(self, tensor: torch.Tensor, start: int, out: Raw) -> None:
        """Copy bytes [start, start + out.size) of a tensor's values to `out`; of another tensor those that it has now.

        OSError if the snapshot was closed meanwhile.
        """
        place = 0
        for piece in self._pieces.get(tensor.data_ptr()) or [_Piece(raw(tensor), None)]:
            first, last = max(start, place), min(start + out.size, place + piece.live.size)
            if first < last:
                self._read(piece, first - place, out[first - start : last - start])
            place += piece.live.size

    def _read(self, piece: _Piece, start: int, out: Raw) -> None:
        while True:
            with self._room.changed:
                if self._closed:
                    raise OSError(errno.ECANCELED, "it was given up")
                copy, base = piece.copy, piece.base
            np.copyto(out, (piece.live if copy is None else copy)[start - base : start - base + out.size])
            if piece.part is None:
                return
            with self._room.changed:
                if piece.copy is not copy:  # it may have been changed amid the reading
                    continue
                piece.read = start + out.size
                if not piece.rest and copy is not None:
                    piece.copy = None
                    self._give_back(copy.size)
                self._room.changed.notify_all()
                return

    def rewind(self) -> bool:
        """Begin to read anew, if no part was protected so far; else False."""
        with self._room.changed:
            if not self._changed:
                for piece in (each for found in self._pieces.values() for each in found):
                    piece.read = 0
            return not self._changed

    def close(self) -> None:
        """Nothing more is read: let go of copies and of those who wait. Any thread may call it, more than once."""
        with self._room.changed:
            self._closed = True
            for piece in (each for found in self._pieces.values() for each in found):
                if piece.copy is not None:
                    self._give_back(piece.copy.size)
                    piece.copy = None
            self._room.changed.notify_all()

    def _give_back(self, size: int) -> None:
        self._room.taken -= size
        self._room.changed.notify_all()


def raw(tensor: torch.Tensor) -> Raw:
    """The bytes of a contiguous tensor on the host, which share its memory."""
    import torch

    found: Raw = tensor.detach().reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    return found


def free_memory() -> int:
    """Bytes of memory that this machine has free or could free at once; where it does not tell, half of all."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        [kibibytes] = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return min(int(kibibytes) * 1024, _free_in_group())
    except (OSError, ValueError):
        return memory() // 2


def _free_in_group() -> int:
    """Bytes that the control group of a container leaves; without one the memory of the machine."""
    try:
        most, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):
        return memory()
    return max(0, most - used)


def _cut(live: Raw, ranges: Sequence[tuple[int, int, int]]) -> list[_Piece]:
    """The bytes of a tensor by the parts that they belong to. `ranges`: address, size and part, ascending."""
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


def _fresh(size: int) -> Raw:
    """Memory that goes back to the system when it is let go of, whatever malloc keeps."""
    pages = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(pages, np.uint8)
