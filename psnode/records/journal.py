"""Files to which lines are appended, even if the disk is temporarily full."""

from __future__ import annotations

import logging
import os
from pathlib import Path

_LOG = logging.getLogger(__name__)


class Journal:
    """Unbuffered writer that appends lines to the file `path`, where readers see them immediately.

    Lines that the disk does not take stay in memory, in order, and are tried again with every further line. The caller never
    waits until the disk has room. A file that another process has removed is created again. Both cases are logged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._waiting = b""
        self._refused = False

    def append(self, line: bytes) -> None:
        """Append `line`, which has no newline at its end."""
        self._waiting += line + b"\n"
        try:
            self._write()
        except OSError as error:
            self._tell(error)

    def close(self) -> None:
        """Write the waiting lines and flush the file to disk. Lines that still cannot be written are lost."""
        try:
            self._write()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._tell(error)
        self._file.close()

    def _write(self) -> None:
        if not os.fstat(self._file.fileno()).st_nlink:
            self._begin_anew()
        while self._waiting:
            self._waiting = self._waiting[self._file.write(self._waiting) :]
        self._refused = False

    def _begin_anew(self) -> None:
        """Create the file again. Raises OSError as long as its directory does not exist."""
        again = self._path.open("ab", buffering=0)
        self._file.close()
        self._file = again
        _LOG.warning("%s was removed: it starts again, and its earlier lines are lost", self._path)

    def _tell(self, error: OSError) -> None:
        if not self._refused:
            _LOG.warning("%s cannot be written: %s: its lines wait", self._path, error.strerror)
        self._refused = True
