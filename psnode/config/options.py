"""Declaration of a field of the configuration: type, bounds, spelling, help.

A field is declared once, with `option(...)`. From that declaration come the command line's flag, the
PSNODE_* variable, the key in a TOML file, the check of its value and the message when the value is bad.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from psnode.errors import ConfigurationError

_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


ABSENT: Any = object()  # no value at all, where None is one


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """Accepted values of a field beyond its type. A bound of None: not bounded on that side.

    choices   the words accepted, compared without case; empty: any
    later     words that are understood but not supported yet
    minimum, maximum   inclusive;  above: an exclusive lower bound
    words     spellings of values, such as auto for 0; these are accepted beside the bounds
    needs     (field, value): the setting means something only if that field has that value
    implies   naming the setting is enough to choose `needs`
    free      may differ when a run is resumed, and is no part of the job's digest
    replans   may differ when a run is resumed, which then gets a plan by rule
    aliases   further flags
    names_code   tells if a value names code that is executed: a recorded run's is not taken over unasked
    before    value in runs whose record does not know the setting; ABSENT: such a record is damaged
    inverse   a bool's flag has a --no- form
    """

    help: str
    metavar: str = ""
    choices: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
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
    before: Any = ABSENT


def option(default: Any, help: str, **rules: Any) -> Any:  # noqa: A002
    """A dataclass field with its `Rules`; `default` is the value that holds when nobody gives one."""
    return dataclasses.field(default=default, metadata={"rules": Rules(help, **rules)})


def nearest(word: str, choices: Iterable[str]) -> str:
    """`; did you mean x?` for the choice closest to `word`, or an empty string when none is close."""
    by_key = {choice.casefold(): choice for choice in choices}
    close = difflib.get_close_matches(word.casefold(), by_key, n=1, cutoff=0.5)
    return f"; did you mean {by_key[close[0]]}?" if close else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One field: `kind` is int, float, bool, str or Path; `many` makes the value a tuple of them."""

    name: str
    kind: type
    many: bool
    optional: bool
    default: Any
    rules: Rules

    @property
    def flag(self) -> str:
        """The long flag, which also names the setting in messages."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "PSNODE_" + self.name.upper()

    def parse(self, text: str, label: str) -> Any:
        """The value that `text` spells; `label` names its origin in a ConfigurationError."""
        if self.many:
            return self.check(tuple(self._item(part.strip(), label) for part in text.split(",") if part.strip()), label)
        return self.check(self._item(text, label), label)

    def check(self, value: Any, label: str) -> Any:
        """`value` in the field's own type and within its bounds, or a ConfigurationError."""
        if value is None and self.optional:
            return None
        if not self.many:
            return self._bounded(self._typed(value, label), label)
        if isinstance(value, str) or not isinstance(value, (list, tuple)):
            raise ConfigurationError(f"{label} must be a list of {_KINDS[self.kind]} items, not {value!r}")
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
        raise ConfigurationError(f"{label} must be {self._expected()}, not {text!r}{self._remedy()}")

    def _typed(self, value: Any, label: str) -> Any:
        if isinstance(value, str) and value.casefold() in self.rules.words:
            return self.rules.words[value.casefold()]
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if self.kind is Path and isinstance(value, str):
            value = Path(value)
        if not isinstance(value, self.kind) or (self.kind is not bool and isinstance(value, bool)):
            raise ConfigurationError(f"{label} must be {self._expected()}, not {value!r}{self._remedy()}")
        return value

    def _bounded(self, value: Any, label: str) -> Any:
        rules = self.rules
        if self.kind in (int, float) and value not in rules.words.values():
            low = value < rules.minimum if rules.minimum is not None else rules.above is not None and value <= rules.above
            if not math.isfinite(value) or low or (rules.maximum is not None and value > rules.maximum):
                raise ConfigurationError(f"{label} must be {self._expected()}, not {value!r}{self._remedy()}")
        if self.kind is str and ("\n" in value or "\0" in value):
            raise ConfigurationError(f"{label} must be one line, not {value!r}")
        if not rules.choices:
            return value
        for choice in rules.choices:
            if choice.casefold() == value.casefold():
                return choice
        valid = ", ".join(rules.choices)
        if value.casefold() in {word.casefold() for word in rules.later}:
            raise ConfigurationError(f"{label} {value} is not yet supported: use {valid}")
        near = nearest(value, rules.choices)
        raise ConfigurationError(f"{label} must be {'one of ' if len(rules.choices) > 1 else ''}{valid}, not {value!r}{near}")

    def _expected(self) -> str:
        rules, parts = self.rules, [_KINDS[self.kind]]
        if rules.minimum is not None:
            parts.append(
                f"from {rules.minimum:g} to {rules.maximum:g}" if rules.maximum is not None else f"of at least {rules.minimum:g}"
            )
        elif rules.above is not None:
            parts.append(f"above {rules.above:g}" + (f" and at most {rules.maximum:g}" if rules.maximum is not None else ""))
        return " ".join(parts) + "".join(f" or {word}" for word in rules.words)

    def _remedy(self) -> str:
        if self.default is None or self.many:
            return ": leave it out for the default"
        spelled = next((word for word, value in self.rules.words.items() if value == self.default), self.default)
        return f": the default is {str(spelled).lower() if self.kind is bool else spelled}"


def settings_of(cls: type) -> dict[str, Setting]:
    """The settings of a dataclass whose fields were declared with `option`, by name, in order."""
    hints = typing.get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        hint, optional = hints[field.name], False
        if isinstance(hint, types.UnionType):
            members = [member for member in typing.get_args(hint) if member is not type(None)]
            hint, optional = members[0], len(members) < len(typing.get_args(hint))
        many = typing.get_origin(hint) is tuple
        kind = typing.get_args(hint)[0] if many else hint
        found[field.name] = Setting(field.name, kind, many, optional, field.default, field.metadata["rules"])
    return found
