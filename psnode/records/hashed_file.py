"""A file that is hashed while it is written, from beginning to end, and bypasses the system's cache if it is large.

The cache would copy every byte once more, and clear a page for it: for a checkpoint of gigabytes that costs memory, and processor
time that training needs.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import xxhash

from psnode.codecs.pages import Pages

Raw = npt.NDArray[np.uint8]
BLOCK = 1 << 23  # bytes hashed and written at a time: they stay in the processor's cache
_ALIGNED = 1 << 12  # writes past the cache are multiples of this
_LARGE = 2 * BLOCK
_DIRECT = getattr(os, "O_DIRECT", 0)


class Entry(NamedTuple):
    """Size and xxh3_128 of a file, in the manifest's form."""

    nbytes: int
    digest: str


class HashedFile:
    """A new file at `path` of about `size` bytes. When the context ends without an error it is on the disk: `entry`.

    Raises OSError, also at the end, if the disk does not take it.
    """

    entry: Entry

    def __init__(self, path: Path, size: int) -> None:
        self._file = path.open("wb", buffering=0)
        self._digest = xxhash.xxh3_128()
        self._room: Raw = Pages(min(BLOCK, -(-max(size, 1) // _ALIGNED) * _ALIGNED)).raw
        self._held = 0
        self._size = 0
        self._flags = 0
        if _DIRECT and size >= _LARGE:
            self._bypass(_DIRECT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._file:
            if kind is None:
                if self._held % _ALIGNED:
                    self._bypass(0)
                self._flush()
                os.fsync(self._file.fileno())
                self.entry = Entry(self._size, self._digest.hexdigest())

    def room(self) -> Raw:
        """Return memory for the next bytes of the file; never empty."""
        if self._held == self._room.size:
            self._flush()
        return self._room[self._held :]

    def take(self, count: int) -> None:
        """Append the first `count` bytes of `room` to the file."""
        self._held += count

    def write(self, content: bytes | Raw) -> None:
        """Append these bytes."""
        left: Raw = np.frombuffer(content, np.uint8)
        while left.size:
            room = self.room()
            count = min(room.size, left.size)
            room[:count], left = left[:count], left[count:]
            self.take(count)

    def _flush(self) -> None:
        content = memoryview(self._room)[: self._held]  # type: ignore[arg-type]
        self._digest.update(content)
        self._size += self._held
        self._held = 0
        while content:
            try:
                count = os.write(self._file.fileno(), content)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._flags:
                    raise
                self._bypass(0)  # its blocks are larger than most
                continue
            content = content[count:]
            if count % _ALIGNED:
                self._bypass(0)

    def _bypass(self, flag: int) -> None:
        """Write past the cache, or (0) through it, as far as the file system can."""
        import fcntl

        if flag == self._flags:
            return
        try:
            known = fcntl.fcntl(self._file, fcntl.F_GETFL)
            fcntl.fcntl(self._file, fcntl.F_SETFL, known & ~_DIRECT | flag)
            self._flags = flag
        except OSError:  # it does not support this, for example tmpfs
            if not flag:
                raise
