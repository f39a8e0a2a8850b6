"""One style of help in every command, and one line for every error of the command line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest

import psnode
from psnode_ec2 import flags
from psnode_ec2.cli import cli
from psnode_ec2.cluster import counted
from psnode_ec2.settings import FIELDS


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_option_says_its_default_and_its_choices(name: str) -> None:
    command = cli.commands[name]
    assert command.help
    assert command.help.rstrip().endswith(".")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name != "help":
            text = parameter.help or ""
            assert re.search(r"^[A-Z].*\.( \[[^\]]+\])?$", text, re.S), (parameter.name, text)
            setting = FIELDS.get(str(parameter.name))
            default = setting.default if setting else parameter.default
            if default not in (None, False, "", (), {}) and default is not click.core.UNSET:  # type: ignore[attr-defined]
                assert text.endswith("]"), (parameter.name, text)
            for choice in setting.rules.choices if setting else ():
                assert choice in text


def test_the_help_shows_what_is_the_commands_own_first(ec2: Callable[..., Any]) -> None:
    shown = ec2("logs", "--help").out
    assert shown.index("--follow") < shown.index("Settings, each a key of cluster.toml too") < shown.index("--n-workers")
    assert "How instances are bought; on-demand or spot. [on-demand]" in " ".join(shown.split())


def test_the_version_is_psnodes(capfd: pytest.CaptureFixture[str]) -> None:
    from psnode_ec2.cli import main

    main(["--version"])
    assert capfd.readouterr().out == f"psnode-ec2 {psnode.__version__}\n"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["lunch"], "No such command 'lunch'"),
        (["launch", "--n-worker", "3"], "No such option '--n-worker'"),
        (["logs", "--lines", "many"], "Invalid value for '--lines'"),
        (["put", "x"], "Missing argument 'REMOTE'"),
    ],
)
def test_a_word_that_is_not_understood_is_one_line(words: list[str], line: str, capfd: pytest.CaptureFixture[str]) -> None:
    from psnode_ec2.cli import main

    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    (told,) = capfd.readouterr().err.splitlines()
    assert told.startswith("psnode-ec2: error: ")
    assert line in told
    assert told.endswith("--help")


@pytest.mark.parametrize(("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes")])
def test_one_of_a_kind_is_singular(number: int, text: str) -> None:
    assert counted(number, "node") == text


def test_a_dry_run_folds_its_lines_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "would call ec2 run_instances in us-west-2 " + json.dumps({f"Parameter{k}": f"value-{k}" for k in range(40)})
    monkeypatch.setenv("COLUMNS", "80")
    flags._say(line)
    assert capsys.readouterr().out == line + "\n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    flags._say(line)
    lines = capsys.readouterr().out.splitlines()
    assert 1 < len(lines) < 40
    assert max(map(len, lines)) <= 80
    assert " ".join(each.strip() for each in lines) == line
