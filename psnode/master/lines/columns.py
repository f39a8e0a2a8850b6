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
