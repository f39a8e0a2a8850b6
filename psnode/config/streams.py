"""Standard output and error whose reader may go away: a pipe that is closed, a terminal that hangs up, a full disk.

Of a training they take what they can and drop the rest, for the steps are worth more than the lines about them (`outlast`). Any
other command ends quietly, as programs do that SIGPIPE ends (`installed`). Of either, characters that the stream's encoding lacks
become plain ones (psnode.config.plain_text).
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
_FAILING = frozenset({"strict", "backslashreplace"})  # Python's own choices for output and error; others are the user's


def outlast() -> None:
    """From now on, writing to the standard streams of this process never fails."""
    for descriptor in (_OUTPUT, _ERROR):
        _install(descriptor).ends = False


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """End the command inside by SystemExit(141) when its output has no reader left; an error output may go away."""
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
        if before[0] is not sys.__stdout__:  # of a program that calls a command
            sys.stdout, sys.stderr = before


def flush() -> None:
    """Hand on what the standard streams hold; whatever they do not take is dropped."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError, SystemExit):
            stream.flush()


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of `data`, and wait where the descriptor does not block. OSError."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [])


class _Outlet(io.RawIOBase):
    """A descriptor. `ends`: what it does not take ends the process, once; else it is dropped."""

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
                    f"{self.name} takes nothing ({error.strerror}): make room, or send it elsewhere"
                ) from None
        return len(data)


def _install(descriptor: int) -> _Outlet:
    """The outlet of a standard stream, for which sys gets a text stream; one without effect where a program has put its own."""
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
    """Open /dev/null under this number, unless something has it already."""
    with contextlib.suppress(OSError):
        os.fstat(descriptor)
        return
    with contextlib.suppress(OSError):
        opened = os.open(os.devnull, os.O_WRONLY)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
