"""The prose of docstrings and comments: every package meets the goal of scripts/prose.py.

Docstrings and comments once returned to the word order of another language, because no test prevented this.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from psnode.cli import app
from psnode.config.train_settings import settings

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
import prose  # noqa: E402


@pytest.mark.parametrize(("package", "paths"), prose.packages().items())
def test_every_package_meets_the_goal(package: str, paths: list[Path]) -> None:
    counts = prose.count(paths)
    found = {name: (prose.rate(counts, name), limit) for name, limit in prose.GOAL.items()}
    above = {name: f"{rate:.3f} > {limit}" for name, (rate, limit) in found.items() if rate > limit}
    assert not above, f"see scripts/prose.py --show PATTERN {package}"


def commands(command: click.Command) -> list[click.Command]:
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    return [command, *(each for sub in inner for each in commands(sub))]


def test_no_help_line_begins_with_a_bare_preposition() -> None:
    lines = {setting.flag: setting.rules.help for setting in settings().values()}
    for command in commands(app):
        lines |= {f"{command.name} {option.name}": getattr(option, "help", None) or "" for option in command.params}
    assert len(lines) > 200
    assert not {name: text for name, text in lines.items() if text.split(" ")[0] in ("Of", "As", "By", "So")}


def test_the_counts_are_those_of_a_text_counted_by_hand(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""Which of what is behind."""\n\n\ndef f():\n    """So many as are there."""  # as of what\n')
    counts = prose.count([module])
    assert counts[prose.WORDS] == 5 + 5 + 3
    assert {name: counts[name] for name in prose.NAMES if counts[name]} == {
        "what": 2, "behind": 1, "so many": 1, "there": 1, "as of": 1, prose.QUESTION: 1,
    }  # fmt: skip


def test_matches_name_the_line(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""First.\n\nNobody knows.\n"""\n')
    assert list(prose.matches(prose.texts(module))) == [("whoever", 3, "Nobody knows.")]
