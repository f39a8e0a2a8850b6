"""Standard output and error whose reader may go away: a closed pipe, a disconnected terminal, a full disk.

A training run writes as much as the streams accept and drops the rest, because its steps matter more than its output
(`outlast`). Any other command ends quietly, as if by SIGPIPE (`installed`). In both cases plain characters replace the
characters that the stream's encoding lacks (psnode.config.plain_text).
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
# error handlers that Python chooses for output and error; any other was chosen by the user
_FAILING = frozenset({"strict", "backslashreplace"})


def outlast() -> None:
    """Make sure that writing to the standard streams of this process never fails."""
    for descriptor in (_OUTPUT, _ERROR):
        _install(descriptor).ends = False


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """End the command in this context by SystemExit(141) once its output has lost its reader.

    A lost reader of the error output is ignored. Raises ConfigurationError if the output fails for another reason.
    """
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
        if before[0] is not sys.__stdout__:  # the calling program had replaced the streams: restore the program's streams
            sys.stdout, sys.stderr = before


def flush() -> None:
    """Flush the standard streams and drop the data that they do not accept."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError, SystemExit):
            stream.flush()


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`, waiting if `descriptor` is non-blocking and not ready. Raises OSError."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


class _Outlet(io.RawIOBase):
    """A stream to a file descriptor that survives failed writes.

    If `ends` is True, the first failed write raises an error: SystemExit if the reader has gone, otherwise
    ConfigurationError. In all other cases the data of a failed write is dropped.
    """

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
    """Install a text stream for a standard stream in `sys` and return its outlet.

    A stream that the program itself has installed is not replaced.
    """
    attribute, name = ("stdout", "standard output") if descriptor == _OUTPUT else ("stderr", "standard error")
    stream: TextIO | None = getattr(sys, attribute)
    found = getattr(getattr(stream, "buffer", None), "raw", getattr(stream, "buffer", None))
    if isinstance(found, _Outlet):
        return found
    outlet = _Outlet(descriptor, name)
    if stream is None:  # closed before the start: a file opened later must not get this descriptor
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
    """Open /dev/null under the number `descriptor` if that number is free."""
    with contextlib.suppress(OSError):
        os.fstat(descriptor)
        return
    with contextlib.suppress(OSError):
        opened = os.open(os.devnull, os.O_WRONLY)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
