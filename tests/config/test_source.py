"""The digest of a package's source: equal for equal commits, different for different ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from psnode.config.source import digest

FILES = {"__init__.py": b"x = 1\n", "part/__init__.py": b"", "part/table.py": b"# rows\nrows = []\n"}


def package(folder: Path) -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    return folder


def lines_end_otherwise(home: Path) -> None:
    for path in home.rglob("*.py"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def is_compiled(home: Path) -> None:
    (home / "__pycache__").mkdir()
    (home / "__pycache__" / "table.cpython-311.pyc").write_bytes(b"code")


def has_an_editors_copy(home: Path) -> None:
    (home / "part" / ".ipynb_checkpoints").mkdir()
    (home / "part" / ".ipynb_checkpoints" / "table-checkpoint.py").write_bytes(b"rows = [1]")
    (home / ".#table.py").write_bytes(b"rows = [2]")


@pytest.mark.parametrize("change", [lambda home: None, lines_end_otherwise, is_compiled, has_an_editors_copy])
def test_a_copy_has_the_same_digest_wherever_it_lies(change: Callable[[Path], None], tmp_path: Path) -> None:
    first, other = package(tmp_path / "a"), package(tmp_path / "somewhere" / "else")
    change(other)
    assert digest(other) == digest(first)


def changed_comment(home: Path) -> None:
    (home / "part" / "table.py").write_bytes(b"# Rows\nrows = []\n")


def moved(home: Path) -> None:
    (home / "part" / "table.py").rename(home / "table.py")


def grown(home: Path) -> None:
    (home / "part" / "empty.py").touch()


def cut_elsewhere(home: Path) -> None:
    """Divide the same sequence of bytes differently between the files of the package."""
    (home / "__init__.py").write_bytes(b"x = 1\n# rows\n")
    (home / "part" / "table.py").write_bytes(b"rows = []\n")


@pytest.mark.parametrize("change", [changed_comment, moved, grown, cut_elsewhere])
def test_another_source_has_another_digest(change: Callable[[Path], None], tmp_path: Path) -> None:
    first, other = package(tmp_path / "a"), package(tmp_path / "b")
    change(other)
    assert digest(other) != digest(first)
