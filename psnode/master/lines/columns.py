"""Log lines in two columns, at most 80 characters wide unless a single word is longer."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterable

_LABEL = 11
_WIDTH = 80 - len("psnode: ") - _LABEL


def tell(log: logging.Logger, rows: Iterable[tuple[str, str]]) -> None:
    """Log the label and text of each row, and wrap long texts."""
    for label, text in rows:
        for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False):
            log.info("%s", f"{label:{_LABEL}}{line}")
            label = ""
