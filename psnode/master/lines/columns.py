"""Lines of the log that stand in two columns, at most 80 characters wide where the words allow it."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterable

_LABEL = 11
_WIDTH = 80 - len("psnode: ") - _LABEL


def tell(log: logging.Logger, rows: Iterable[tuple[str, str]]) -> None:
    """Log each row's label and text, long texts in several lines."""
    for label, text in rows:
        for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False):
            log.info("%s", f"{label:{_LABEL}}{line}")
            label = ""


def amount(nbytes: float) -> str:
    """Bytes in kB, MB or GB, in three digits or more."""
    unit, size = next((pair for pair in (("GB", 1e9), ("MB", 1e6)) if nbytes >= pair[1]), ("kB", 1e3))
    number = nbytes / size
    return f"{number:,.{2 if number < 10 else 1 if number < 100 else 0}f} {unit}"


def counted(number: int, noun: str) -> str:
    """`number` things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
