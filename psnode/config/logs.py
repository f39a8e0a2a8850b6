"""psnode's log on standard error. Every module has a logger of its name, as `logging` advises;
this module configures the output."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ROOT = logging.getLogger("psnode")


class _StandardError(logging.Handler):
    """Writes each record immediately to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except OSError:  # the stream is closed
            self.handleError(record)


@contextmanager
def shown(rank: int = 0) -> Iterator[None]:
    """While inside, show the log on standard error: "psnode: TEXT", and on ranks other than 0 "psnode: rank R: TEXT".

    A program that has set up `logging` itself keeps its handlers, which get the records instead.
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
    """While inside, log nothing below a warning if `quiet`."""
    level = _ROOT.level
    if quiet:
        _ROOT.setLevel(logging.WARNING)
    try:
        yield
    finally:
        _ROOT.setLevel(level)
