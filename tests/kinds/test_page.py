"""docs/models.md has a row for every kind that is tested, in the same order, with the results of the tests."""

from __future__ import annotations

import re
from pathlib import Path

from tests.kinds.table import KINDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text()


def test_the_page_says_what_is_tested() -> None:
    rows = [tuple(cell.strip() for cell in row.split("|")[1:3]) for row in re.findall(r"^\| .*\|$", PAGE, re.M)]
    assert rows[1:] == [(kind.name, kind.verdict) for kind in KINDS]
    assert len(KINDS) >= 40
