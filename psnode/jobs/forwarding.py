"""Forwarding of mpirun's output by the launcher.

If mpirun wrote to the output itself, it would end the job as soon as the reader of the output closes it.
"""

from __future__ import annotations

import contextlib
import os
import termios
import threading
import tty
from types import TracebackType
from typing import Self

from psnode.config import streams

_BYTES = 1 << 16
_LAST_SECONDS = 5.0
_KEPT = 1 << 16  # bytes kept from the beginning of standard error


class Forwarding:
    """Pipes that forward the output of a child process to descriptors 1 and 2 of this process.

    If both descriptors lead to the same file, they share one pipe, so that the order of the output is kept. If the output is
    a terminal, pseudo-terminals replace the pipes, so that progress bars work in the child process.
    """

    def __init__(self) -> None:
        self._read, self.output = _channel(1)
        self._ends = [(self._read, 1)]
        self.error = self.output
        if not _same(1, 2):
            read, self.error = _channel(2)
            self._ends.append((read, 2))
        self._heard = bytearray()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def begin(self) -> None:
        """Start the forwarding. Call this when the child process runs, because this process's writing ends are closed here."""
        self._close_writing()
        for source, target in self._ends:
            self._threads.append(threading.Thread(target=self._copy, args=(source, target), name="psnode-output", daemon=True))
            self._threads[-1].start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close_writing()
        for thread in self._threads:
            thread.join(_LAST_SECONDS)  # do not wait for a stopped terminal, which accepts no data

    @property
    def heard(self) -> str:
        """Return the beginning of the child process's output on standard error."""
        return self._heard.decode(errors="replace")

    def _copy(self, source: int, target: int) -> None:
        last = source == self._ends[-1][0]
        while data := _read(source):
            if last and len(self._heard) < _KEPT:
                self._heard += data
            with contextlib.suppress(OSError):  # the output has lost its reader, but the job continues
                streams.write(target, data)
        os.close(source)

    def _close_writing(self) -> None:
        for descriptor in {self.output, self.error} - {-1}:
            os.close(descriptor)
        self.output = self.error = -1


def _channel(target: int) -> tuple[int, int]:
    """Return the reading end and the writing end of a channel for output to descriptor `target`.

    If `target` is a terminal, the channel is a raw pseudo-terminal of the same size; otherwise it is a pipe.
    """
    if not os.isatty(target):
        return os.pipe()
    read, write = os.openpty()
    tty.setraw(write)
    with contextlib.suppress(OSError):
        termios.tcsetwinsize(write, termios.tcgetwinsize(target))
    return read, write


def _read(source: int) -> bytes:
    try:
        return os.read(source, _BYTES)
    except OSError:  # the last writer of a pseudo-terminal has ended
        return b""


def _same(one: int, other: int) -> bool:
    with contextlib.suppress(OSError):
        return os.path.sameopenfile(one, other)
    return False
