"""Doctests of all modules: examples in docstrings print the output that they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from psnode.codecs import table

ROOT = Path(__file__).resolve().parents[1]
MODULES = [path for path in sorted((ROOT / "psnode").rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_print_what_they_say(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    found = doctest.testmod(importlib.import_module(".".join(parts).removesuffix(".__init__")))
    assert found.attempted > 0 and found.failed == 0


@pytest.mark.parametrize("name", sorted({name for name, entry in table.CODECS.items() if entry.target} | {"contractive"}))
def test_every_codec_has_an_example(name: str) -> None:
    assert ">>> " in (table.load(name).__doc__ or "")
