"""Names of runs for tables and legends: shortened names, and a common name for several runs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

CUT = 28  # maximum number of characters of a name in a table or a legend
_DIGITS = "0123456789"


def shortened(names: Sequence[str], most: int = CUT) -> list[str]:
    """Return the names, each cut in its middle if it is longer than `most` characters.

    Different names stay different: if they differ only in the part that would be cut, the limit is raised for all names.
    """
    longest = max(map(len, names), default=0)
    while most < longest:
        cut = [_cut(name, most) for name in names]
        if len(set(cut)) == len(set(names)):
            return cut
        most += most // 4 + 1
    return list(names)


def _cut(name: str, most: int) -> str:
    if len(name) <= most:
        return name
    behind = (most - 1) // 2
    return f"{name[: most - 1 - behind]}…{name[len(name) - behind :]}"


def common_name(names: Sequence[str]) -> str:
    """Return the beginning and the end that all names have in common, with an asterisk for the part in which they differ.

    Numbers are not split: lr-0.1-1 and lr-0.1-12 give lr-0.1-*.
    """
    ahead = _beginning(names)
    behind = _beginning([name[len(ahead) :][::-1] for name in names])[::-1]
    return f"{ahead.rstrip(_DIGITS)}*{behind.lstrip(_DIGITS)}"


def _beginning(names: Sequence[str]) -> str:
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    return "".join(letters[0] for letters in alike)
