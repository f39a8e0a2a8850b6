"""Standard output and error whose reader may go away: a closed pipe, a terminal that hangs up, a full disk.

A training writes as much as they take and drops the rest, since the steps are worth more than the lines about them (`outlast`).
Any other command ends quietly, like a program that SIGPIPE ends (`installed`). In both cases plain characters replace those that
the stream's encoding lacks (psnode.config.plain_text).
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from typing import IO, TextIO, cast

from psnode.config.plain_text import STANDS_IN, encoding_of
from psnode.errors import ConfigurationError

READER_GONE = 141  # 128 + SIGPIPE
_GONE = frozenset({errno.EPIPE, errno.EIO, errno.ENXIO, errno.ECONNRESET, errno.EBADF})
_OUTPUT, _ERROR = 1, 2
_FAILING = frozenset({"strict", "backslashreplace"})  # Python's own choices for output and error; any other is the user's


def outlast() -> None:
    """Make writing to the standard streams of this process never fail."""
    for descriptor in (_OUTPUT, _ERROR):
        _install(descriptor).ends = False


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """End the command inside by SystemExit(141) when its output has lost its reader. The error output may go away."""
    before = sys.stdout, sys.stderr
    _install(_OUTPUT).ends = True
    _install(_ERROR)
    try:
        yield
        sys.stdout.flush()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(SystemExit, ConfigurationError, OSError, ValueError):
                stream.flush()
        if before[0] is not sys.__stdout__:  # a program that calls a command has replaced the stream
            sys.stdout, sys.stderr = before


def flush() -> None:
    """Flush the standard streams and drop whatever they do not take."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError, SystemExit):
            stream.flush()


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`, and wait if the descriptor does not block. Raises OSError."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


class _Outlet(io.RawIOBase):
    """A descriptor. With `ends`, a failed write ends the process, once; otherwise the data is dropped."""

    def __init__(self, descriptor: int, name: str) -> None:
        self.name, self.ends, self._descriptor = name, False, descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: memoryview) -> int:  # type: ignore[override]  # any buffer in the stubs
        try:
            write(self._descriptor, data)
        except OSError as error:
            if self.ends:
                self.ends = False
                if error.errno in _GONE:
                    raise SystemExit(READER_GONE) from None
                raise ConfigurationError(
                    f"{self.name} cannot be written ({error.strerror}): make room, or send it elsewhere"
                ) from None
        return len(data)


def _install(descriptor: int) -> _Outlet:
    """Return the outlet of a standard stream and install a text stream for it in sys; no effect if the program has installed its
    own."""
    attribute, name = ("stdout", "standard output") if descriptor == _OUTPUT else ("stderr", "standard error")
    stream: TextIO | None = getattr(sys, attribute)
    found = getattr(getattr(stream, "buffer", None), "raw", getattr(stream, "buffer", None))
    if isinstance(found, _Outlet):
        return found
    outlet = _Outlet(descriptor, name)
    if stream is None:  # closed before the start: a file that is opened later must not get its number
        _fill(descriptor)
        setattr(sys, attribute, io.TextIOWrapper(_buffered(outlet), encoding="utf-8", errors=STANDS_IN, line_buffering=True))
    elif stream is getattr(sys, f"__{attribute}__") and isinstance(stream, io.TextIOWrapper):
        with contextlib.suppress(OSError):
            stream.flush()
        unbuffered = isinstance(stream.buffer, io.RawIOBase)  # python -u
        new = io.TextIOWrapper(
            cast(IO[bytes], outlet) if unbuffered else _buffered(outlet),
            encoding=encoding_of(stream.encoding),
            errors=STANDS_IN if stream.errors in _FAILING else stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, attribute, new)
    return outlet


def _buffered(outlet: _Outlet) -> IO[bytes]:
    return io.BufferedWriter(cast(io.RawIOBase, outlet))


def _fill(descriptor: int) -> None:
    """Open /dev/null under this number if it is free."""
    with contextlib.suppress(OSError):
        os.fstat(descriptor)
        return
    with contextlib.suppress(OSError):
        opened = os.open(os.devnull, os.O_WRONLY)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
