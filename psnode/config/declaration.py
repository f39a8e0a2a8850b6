"""Declarations of the fields of a configuration: type, bounds, spelling, help.

A field is declared once, with `option(...)`. The command line's flag, the environment variable, the key in a TOML file, the
check of the value and the messages about bad values all follow from the declaration. Two programs use this module: `psnode`,
and the cluster tool psnode-ec2, which imports nothing of psnode outside psnode.config (docs/decisions/settings.md).
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from psnode.errors import ConfigurationError

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


ABSENT: Any = object()  # stands for a missing value where None is a value


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """Rules about a field in addition to its type. A bound of None does not restrict that side.

    * choices: the accepted words; if empty, any word is accepted
    * numbered: beginnings of further accepted words; such a word continues with a whole number from 1 on
    * pattern: a regular expression that a text must match, unless the text is empty
    * minimum, maximum: inclusive bounds
    * above: exclusive lower bound
    * words: spellings of values, such as auto for 0; these values are accepted even if they are out of bounds
    * needs: a pair (field, value): the setting has a meaning only if that field has that value, or one of several values
    * implies: if the setting is given but the field in `needs` is not, that field gets the value in `needs`
    * free: the setting may differ when a run is resumed, and is not part of the job's digest
    * replans: the setting may differ when a run is resumed, which then gets a new plan
    * aliases: further flags
    * names_code: a function that returns True for a value that names code to execute; if such a value comes from a run's record,
      the user has to consent
    * repeated: if True, the flag of a list takes one item and may be repeated; otherwise it takes all items, separated by commas
    * example: a value to show if there is no default
    * before: the value in runs whose record lacks the setting; if it is ABSENT, a record that lacks the setting is damaged
    """

    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    numbered: tuple[str, ...] = ()
    pattern: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    words: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    needs: tuple[str, Any] | None = None
    implies: bool = False
    free: bool = False
    replans: bool = False
    aliases: tuple[str, ...] = ()
    names_code: Callable[[str | None], bool] | None = None
    repeated: bool = False
    example: Any = None
    before: Any = ABSENT

    @property
    def words_told(self) -> tuple[str, ...]:
        """Return the accepted words as text for people, with N in the place of a number."""
        return (*self.choices, *(f"{beginning}N" for beginning in self.numbered))

    @property
    def range(self) -> str:
        """Return the bounds of a number as text for people, or an empty string."""
        if self.minimum is not None:
            return f"at least {self.minimum:g}" if self.maximum is None else f"{self.minimum:g} to {self.maximum:g}"
        if self.above is not None:
            return f"above {self.above:g}" + (f" and at most {self.maximum:g}" if self.maximum is not None else "")
        return ""


def option(default: Any, help: str, **rules: Any) -> Any:  # noqa: A002
    """Return a dataclass field with its `Rules`. The field has the value `default` unless the user gives another."""
    metadata = {"rules": Rules(help, **rules)}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return `; did you mean x?` for the choice closest to `word`, or an empty string if none is close."""
    by_key = {choice.casefold(): choice for choice in choices}
    close = difflib.get_close_matches(word.casefold(), by_key, n=1, cutoff=0.5)
    return f"; did you mean {by_key[close[0]]}?" if close else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Voice:
    """Style of a program's messages about its settings.

    * error: the type of the exception for a value that is refused
    * by_key: if True, messages contain the key of a setting and only the broken rule, and a file may give any value as the text
      that would follow the flag; if False, messages contain the flag, the accepted values and the default, and choices may be
      written in upper or lower case
    """

    error: type[Exception] = ConfigurationError
    by_key: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """A declared field. `kind` is int, float, bool, str or Path.

    If `many` is True, the value is a tuple of values of that type. If `keyed` is True, it is a dictionary of such values.
    """

    name: str
    kind: type
    many: bool
    keyed: bool
    optional: bool
    default: Any
    rules: Rules
    voice: Voice

    @property
    def flag(self) -> str:
        """Return the long flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def label(self) -> str:
        """Return the name of the setting in messages about a value whose origin is unknown."""
        return self.name if self.voice.by_key else self.flag

    @property
    def variable(self) -> str:
        """Return the name of the environment variable."""
        return "PSNODE_" + self.name.upper()

    def parse(self, text: str, label: str) -> Any:
        """Return the checked value of `text`. `label` names the origin of the text in errors."""
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if self.many:
            return self.check(tuple(self._item(part, label) for part in parts), label)
        if self.keyed:
            pairs = [part.partition("=") for part in parts]
            return self.check({key: self._item(value, f"{label}: that of {key}") for key, _, value in pairs}, label)
        return self.check(self._item(text, label), label)

    def check(self, value: Any, label: str) -> Any:
        """Return `value` in the field's own type. Raises `voice.error` if the value has another type or is out of bounds."""
        if value is None and self.optional:
            return None
        if not self.many and not self.keyed:
            return self._bounded(self._typed(value, label), label)
        if self.keyed and isinstance(value, Mapping):
            labels = {key: f"{label}: that of {key}" for key in value}
            return {str(key): self._bounded(self._typed(item, labels[key]), labels[key]) for key, item in value.items()}
        if self.keyed or not isinstance(value, (list, tuple)):
            shape = "table" if self.keyed else "list"
            raise self.voice.error(f"{label} must be a {shape} of {_KINDS[self.kind]} items, not {value!r}")
        return tuple(self._bounded(self._typed(item, label), label) for item in value)

    def _item(self, text: str, label: str) -> Any:
        word = text.strip().casefold()
        if word in self.rules.words:
            return self.rules.words[word]
        if self.kind is bool and word in _TRUE | _FALSE:
            return word in _TRUE
        if self.kind in (int, float):
            try:
                return self.kind(text)
            except ValueError:
                pass
        elif self.kind is not bool:
            return text
        raise self._refusal(text, label)

    def _typed(self, value: Any, label: str) -> Any:
        if isinstance(value, str) and value.casefold() in self.rules.words:
            return self.rules.words[value.casefold()]
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if self.kind is Path and isinstance(value, str):
            value = Path(value)
        if not isinstance(value, self.kind) or (self.kind is not bool and isinstance(value, bool)):
            raise self._refusal(value, label)
        return value

    def _bounded(self, value: Any, label: str) -> Any:
        rules = self.rules
        if self.kind in (int, float) and value not in rules.words.values():
            low = value < rules.minimum if rules.minimum is not None else rules.above is not None and value <= rules.above
            if not math.isfinite(value) or low or (rules.maximum is not None and value > rules.maximum):
                raise self._refusal(value, label, rules.range)
        if self.kind is str and ("\n" in value or "\0" in value):
            raise self.voice.error(f"{label} must be one line, not {value!r}")
        if rules.pattern and value and not re.fullmatch(rules.pattern, value):
            raise self.voice.error(f"{label} is {value!r}, which is not valid: {rules.help}")
        return self._chosen(value, label) if rules.choices else value

    def _chosen(self, value: str, label: str) -> str:
        choices, by_key = self.rules.choices, self.voice.by_key
        for choice in choices:
            if choice == value or (not by_key and choice.casefold() == value.casefold()):
                return choice
        if any(re.fullmatch(re.escape(beginning) + "[1-9][0-9]{0,5}", value) for beginning in self.rules.numbered):
            return value
        choices = self.rules.words_told
        valid = " or ".join(choices) if by_key else f"{'one of ' if len(choices) > 1 else ''}{', '.join(choices)}"
        raise self.voice.error(f"{label} must be {valid}, not {value!r}{nearest(value, choices)}")

    def _refusal(self, value: Any, label: str, bounds: str = "") -> Exception:
        """Return the error for a value of the wrong type, or for a value outside `bounds`."""
        if self.voice.by_key:
            return self.voice.error(f"{label} must be {bounds or _KINDS[self.kind]}, not {value!r}")
        rules = self.rules
        before = "" if rules.minimum is None else "of " if rules.maximum is None else "from "
        accepted = f"{_KINDS[self.kind]} {before}{rules.range}".rstrip() + "".join(f" or {word}" for word in rules.words)
        return self.voice.error(f"{label} must be {accepted}, not {value!r}{self._remedy()}")

    def _remedy(self) -> str:
        if self.default is None or self.many:
            return ": leave it out for the default"
        spelled = next((word for word, value in self.rules.words.items() if value == self.default), self.default)
        return f": the default is {str(spelled).lower() if self.kind is bool else spelled}"

    def from_file(self, value: Any, label: str) -> Any:
        """Return the checked value of a key in a TOML file. If the setting's flag repeats KEY=VALUE, the value may be a table."""
        if self.rules.repeated and isinstance(value, dict):
            value = [f"{key}={str(item).lower() if isinstance(item, bool) else item}" for key, item in value.items()]
        return self.parse(value, label) if self.voice.by_key and isinstance(value, str) else self.check(value, label)


def settings_of(cls: type, voice: Voice | None = None) -> dict[str, Setting]:
    """Return the settings of a dataclass whose fields were declared with `option`, by name, in their order."""
    hints = typing.get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        hint, optional = hints[field.name], False
        if isinstance(hint, types.UnionType):
            members = [member for member in typing.get_args(hint) if member is not type(None)]
            hint, optional = members[0], len(members) < len(typing.get_args(hint))
        many, keyed = typing.get_origin(hint) is tuple, typing.get_origin(hint) is Mapping
        kind = typing.get_args(hint)[int(keyed)] if many or keyed else hint
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        rules = field.metadata["rules"]
        found[field.name] = Setting(field.name, kind, many, keyed, optional, default, rules, voice or Voice())
    return found


def read_toml(path: Path, settings: Mapping[str, Setting], hint: str = "") -> dict[str, Any]:
    """Return the settings in a TOML file, whose keys are the names of the flags, with hyphens or underscores.

    Raises the error of the settings' voice for an unreadable file, a refused value or an unknown key. The message about an
    unknown key ends with `hint`.
    """
    voice = next(iter(settings.values())).voice
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise voice.error(f"--config {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise voice.error(f"--config {path} is not valid TOML: {' '.join(str(error).split())}") from error
    between = "_" if voice.by_key else "-"
    spelled = [name.replace("_", between) for name in settings]
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in settings:
            raise voice.error(f"unknown key {key!r} in {path}{nearest(name.replace('_', between), spelled)}{hint}")
        if name in found:
            raise voice.error(f"key {key!r} appears twice in {path}, with a hyphen and with an underscore: drop one")
        found[name] = settings[name].from_file(value, name if voice.by_key else f"{key} in {path}")
    return found


Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


class _Word(click.types.StringParamType):
    """Parameter type of click for text whose accepted words a shell can complete."""

    def __init__(self, rules: Rules) -> None:
        self._words = [*rules.choices, *rules.numbered, *rules.words]

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the choices and the words for values that begin with `incomplete`, ignoring case."""
        found = [word for word in self._words if word.casefold().startswith(incomplete.casefold())]
        return [CompletionItem(word) for word in found]


def click_option(setting: Setting, text: str, complete: Complete | None = None) -> click.Option:
    """Return the command-line option of a setting. Its help is `text`, followed by the default.

    `complete` completes values in a shell; without it, only choices and words are completed. The setting parses the value
    itself, so that a bad value gets the same message from a flag, a variable or a file.
    """
    rules, default = setting.rules, setting.default
    if default is not None and default is not False and default not in ("", (), {}):
        shown = next((word for word, value in rules.words.items() if value == default), default)
        text += f" [{','.join(map(str, shown)) if isinstance(shown, tuple) else shown}]"
    if setting.kind is bool:
        return click.Option([f"{setting.flag}/--no-{setting.flag[2:]}"], default=None, help=text)

    def parsed(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
        return setting.parse(value, setting.label) if isinstance(value, str) else value

    metavar = rules.metavar or "|".join(rules.words_told) or setting.kind.__name__.upper()
    flags = [setting.flag, *rules.aliases]
    return click.Option(
        flags,
        type=_Word(rules),
        multiple=rules.repeated,
        default=None,
        metavar=metavar,
        help=text,
        callback=parsed,
        shell_complete=complete,
    )
