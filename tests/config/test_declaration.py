"""One declaration of settings for two programs: every kind of field is read from flags, texts and files, with the errors of
each program.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from psnode.config.declaration import Voice, click_option, option, read_toml, settings_of
from psnode.errors import ConfigurationError


class RefusedError(Exception):
    """The error class of the other program."""


@dataclass(frozen=True)
class Small:
    """A configuration with every kind of field."""

    count: int = option(2, "how many", minimum=1, maximum=9)
    share: float | None = option(None, "how much", above=0, maximum=1)
    kind: str = option("plain", "which", choices=("plain", "odd"))
    code: str = option("", "a code", pattern=r"[a-z]+")
    parts: tuple[str, ...] = option((), "some")
    prices: Mapping[str, float] = option({}, "prices", example={"a": 1.0})
    place: Path = option(Path("here"), "where")
    loud: bool = option(False, "whether")


BY_FLAG, BY_KEY = settings_of(Small), settings_of(Small, Voice(RefusedError, by_key=True))
COUNT = "--count must be a whole number from 1 to 9, not {}: the default is 2"
SHARE = "--share must be a number above 0 and at most 1, not {}: leave it out for the default"
ODD = "not 'od'; did you mean odd?"
PRICE = "--prices: that of a must be a number, not {}: the default is {{}}"


@pytest.mark.parametrize(
    ("text", "by_flag", "by_key"),
    [
        ("count=0", COUNT.format(0), "count must be 1 to 9, not 0"),
        ("count=x", COUNT.format("'x'"), "count must be a whole number, not 'x'"),
        ("share=0", SHARE.format("0.0"), "share must be above 0 and at most 1, not 0.0"),
        ("share=inf", SHARE.format("inf"), "share must be above 0 and at most 1, not inf"),
        ("kind=od", f"--kind must be one of plain, odd, {ODD}", f"kind must be plain or odd, {ODD}"),
        ("code=A", "--code is 'A', which is not valid: a code", "code is 'A', which is not valid: a code"),
        ("prices=a", PRICE.format("''"), "prices: that of a must be a number, not ''"),
        ("prices=a=inf", PRICE.format("inf"), "prices: that of a must be a number, not inf"),
        ("loud=x", "--loud must be true or false, not 'x': the default is false", "loud must be true or false, not 'x'"),
    ],
)  # fmt: skip
def test_each_program_refuses_in_its_own_words(text: str, by_flag: str, by_key: str) -> None:
    name, _, value = text.partition("=")
    with pytest.raises(ConfigurationError, match=f"^{re.escape(by_flag)}$"):
        BY_FLAG[name].parse(value, BY_FLAG[name].label)
    with pytest.raises(RefusedError, match=f"^{re.escape(by_key)}$"):
        BY_KEY[name].parse(value, BY_KEY[name].label)


def test_choices_ignore_case_where_settings_are_named_by_flags() -> None:
    assert BY_FLAG["kind"].parse("ODD", "--kind") == "odd"
    with pytest.raises(RefusedError, match=r"^kind must be plain or odd, not 'ODD'; did you mean odd\?$"):
        BY_KEY["kind"].parse("ODD", "kind")


FOUND = {"count": 3, "share": 1.0, "parts": ("a", "b"), "place": Path("p"), "loud": True, "prices": {"m5.large": 1.0}}


def file_of(folder: Path, *lines: str) -> Path:
    file = folder / "run.toml"
    file.write_text("\n".join(lines))
    return file


def test_a_file_of_either_program_holds_every_kind_of_value(tmp_path: Path) -> None:
    lines = ["count = 3", "share = 1", 'parts = ["a", "b"]', 'place = "p"', "loud = true", "[prices]", '"m5.large" = 1']
    assert read_toml(file_of(tmp_path, *lines), BY_FLAG) == FOUND
    assert read_toml(file_of(tmp_path, *lines), BY_KEY) == FOUND


def test_a_file_may_hold_the_text_of_a_flag_where_settings_are_named_by_keys(tmp_path: Path) -> None:
    lines = ['count = "3"', 'share = "1"', 'parts = "a, b"', 'place = "p"', 'loud = "true"', 'prices = "m5.large=1"']
    file = file_of(tmp_path, *lines)
    assert read_toml(file, BY_KEY) == FOUND
    with pytest.raises(ConfigurationError, match=r"^count in \S+ must be a whole number from 1 to 9, not '3': the default is 2$"):
        read_toml(file, BY_FLAG)


def test_an_unknown_key_is_refused_with_the_nearest_one_and_a_hint(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"^unknown key 'shar' in \S+; did you mean share\?; see the list$"):
        read_toml(file_of(tmp_path, "shar = 1"), BY_KEY, "; see the list")


def test_a_table_as_default_is_not_shared() -> None:
    assert Small().prices is not Small().prices
    assert BY_KEY["prices"].default == {}


def test_an_option_takes_the_text_of_a_variable_and_shows_its_default() -> None:
    @click.command()
    def command(**given: Any) -> None:
        click.echo(given)

    command.params += [click_option(setting, "Text.") for setting in BY_KEY.values()]
    done = CliRunner().invoke(command, ["--parts", "a,b", "--prices", "m5.large=1,x=2", "--no-loud"])
    given = {name: value for name, value in ast.literal_eval(done.output).items() if value is not None}
    assert given == {"parts": ("a", "b"), "prices": {"m5.large": 1.0, "x": 2.0}, "loud": False}
    text = CliRunner().invoke(command, ["--help"]).output
    assert re.search(r"--count INT +Text\. \[2\]", text)
    assert re.search(r"--kind plain\|odd +Text\. \[plain\]", text)
    assert re.search(r"--loud / --no-loud +Text\.\n", text)
