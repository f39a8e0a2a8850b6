"""The output of psnode's log to standard error. Every module has a logger of its own name, as `logging` advises."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ROOT = logging.getLogger("psnode")


class _StandardError(logging.Handler):
    """Handler that writes each record immediately to the present standard error, after `worded` has rewritten its text."""

    def __init__(self, worded: Callable[[str], str]) -> None:
        super().__init__()
        self._worded = worded

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self._worded(self.format(record)), file=sys.stderr, flush=True)
        except OSError:  # the stream is closed
            self.handleError(record)


@contextmanager
def shown(rank: int = 0, worded: Callable[[str], str] = str) -> Iterator[None]:
    """Show the log on standard error inside the context: "psnode: TEXT", and on ranks other than 0 "psnode: rank R: TEXT".

    `worded` rewrites each line, for example with arguments of a program in place of flags.

    If the program has set up `logging` itself, its handlers get the records instead, and `worded` is not used.
    """
    if _ROOT.hasHandlers():
        yield
        return
    handler, level = _StandardError(worded), _ROOT.level
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
    """Log only warnings and errors inside the context if `quiet`."""
    level = _ROOT.level
    if quiet:
        _ROOT.setLevel(logging.WARNING)
    try:
        yield
    finally:
        _ROOT.setLevel(level)
