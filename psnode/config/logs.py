"""psnode's log on standard error. Every module has a logger of its name, as `logging` advises; here is where its lines go."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ROOT = logging.getLogger("psnode")


class _StandardError(logging.Handler):
    """Writes each record at once to the standard error of that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except OSError:  # it is closed
            self.handleError(record)


@contextmanager
def shown(rank: int = 0) -> Iterator[None]:
    """Show the log on standard error while inside: "psnode: TEXT", and on ranks other than 0 "psnode: rank R: TEXT".

    Not in a program that has set up `logging` itself: its handlers get the records then.
    """
    if _ROOT.hasHandlers():
        yield
        return
    handler, level = _StandardError(), _ROOT.level
    handler.setFormatter(logging.Formatter(f"psnode: {f'rank {rank}: ' if rank else ''}%(message)s"))
    _ROOT.addHandler(handler)
    _ROOT.setLevel(logging.INFO)
    try:
        yield
    finally:
        _ROOT.removeHandler(handler)
        _ROOT.setLevel(level)


@contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """Let nothing below a warning into the log while inside, if `quiet`."""
    level = _ROOT.level
    if quiet:
        _ROOT.setLevel(logging.WARNING)
    try:
        yield
    finally:
        _ROOT.setLevel(level)
