"""A file that is hashed while it is written, and that bypasses the system's page cache if it is large.

The cache would copy every byte once more, into pages that the system clears first. For a checkpoint of gigabytes, this takes
memory and processor time that training needs.
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
BLOCK = 1 << 23  # bytes hashed and written at a time, few enough to stay in the processor's cache
_ALIGNED = 1 << 12  # sizes of writes that bypass the page cache must be multiples of this number of bytes
_LARGE = 2 * BLOCK
_DIRECT = getattr(os, "O_DIRECT", 0)


class FileEntry(NamedTuple):
    """Size in bytes and hexadecimal xxh3_128 of a file, as in a manifest."""

    nbytes: int
    digest: str


class HashedFile:
    """A new file at `path` of about `size` bytes, which is hashed while it is written.

    When its context ends without an error, the file has been flushed to disk and `entry` describes it. Writing to the file,
    and leaving the context, raise OSError if the disk does not take the data.
    """

    entry: FileEntry

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
                self.entry = FileEntry(self._size, self._digest.hexdigest())

    def room(self) -> Raw:
        """Return a buffer for the next bytes of the file. It is never empty."""
        if self._held == self._room.size:
            self._flush()
        return self._room[self._held :]

    def take(self, count: int) -> None:
        """Append the first `count` bytes of `room` to the file."""
        self._held += count

    def write(self, content: bytes | Raw) -> None:
        """Append `content` to the file."""
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
                self._bypass(0)  # the file system's blocks are larger than _ALIGNED
                continue
            content = content[count:]
            if count % _ALIGNED:
                self._bypass(0)

    def _bypass(self, flag: int) -> None:
        """Bypass the page cache if `flag` is O_DIRECT, or use it if `flag` is 0, as far as the file system supports it."""
        import fcntl

        if flag == self._flags:
            return
        try:
            known = fcntl.fcntl(self._file, fcntl.F_GETFL)
            fcntl.fcntl(self._file, fcntl.F_SETFL, known & ~_DIRECT | flag)
            self._flags = flag
        except OSError:  # a file system without O_DIRECT, for example tmpfs
            if not flag:
                raise
