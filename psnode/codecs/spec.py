"""Spec strings: a stage such as `qsgd:levels=15,bucket=512`, a chain of stages joined by `+`, or `contractive(CHAIN)`.

    spec   = chain | "contractive(" chain ")"
    chain  = stage { "+" stage }
    stage  = id [ ":" name "=" value { "," name "=" value } ]

This module parses text into stages and imports no codec. A value is an int, a float, a bool or a word. An empty value stands
for None.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from psnode.errors import CodecSpecError

CODEC_FILE = ".py:"  # part of FILE:NAME, which names a class in a file
_WRAPPER = "contractive("
_LATER = "added later"
_WORDS = {int: "an integer", float: "a number", bool: "true or false"}


class Stage(NamedTuple):
    """A stage of a spec: its id and its settings as text. str(stage) is its spec string."""

    id: str
    settings: Mapping[str, str]

    @classmethod
    def of(cls, name: str, codec: Any) -> Stage:
        """Return the stage whose settings are the fields of the dataclass `codec`.

        Fields made by `added_later` are omitted while they have their default.
        """
        values = {field: getattr(codec, field.name) for field in dataclasses.fields(codec)}
        return cls(name, {f.name: _show(value) for f, value in values.items() if _LATER not in f.metadata or value != f.default})

    def __str__(self) -> str:
        return f"{self.id}:{','.join(f'{key}={value}' for key, value in self.settings.items())}".removesuffix(":")


class Spec(NamedTuple):
    """The stages of a chain. If `wrapped` is True, the spec is for the chain's contractive form. parse(str(spec)) == spec."""

    wrapped: bool
    stages: tuple[Stage, ...]

    def __str__(self) -> str:
        chain = "+".join(map(str, self.stages))
        return f"{_WRAPPER}{chain})" if self.wrapped else chain

    def holder(self, parameter: str) -> int | None:
        """Return the index of the first stage that sets `parameter`, or None."""
        return next((index for index, stage in enumerate(self.stages) if parameter in stage.settings), None)

    def changed(self, index: int, settings: Mapping[str, str]) -> Spec:
        """Return a spec in which stage `index` has the settings `settings` in addition to, or in place of, its own."""
        stage = self.stages[index]
        new = stage._replace(settings={**stage.settings, **settings})
        return self._replace(stages=(*self.stages[:index], new, *self.stages[index + 1 :]))


def parse(text: str) -> Spec:
    """Return the Spec of a spec string. Raises CodecSpecError."""
    if not isinstance(text, str):
        raise CodecSpecError(f"a codec spec is a string such as 'qsgd:levels=15', not {text!r}")
    chain = text.strip()
    wrapped = chain.startswith(_WRAPPER)
    if wrapped:
        if not chain.endswith(")"):
            raise CodecSpecError(f"codec spec {text!r} lacks its closing parenthesis")
        chain = chain[len(_WRAPPER) : -1]
    return Spec(wrapped, tuple(_parse_stage(part.strip(), text) for part in chain.split("+")))


def _parse_stage(part: str, text: str) -> Stage:
    name, colon, rest = part.partition(":")
    if not name:
        raise CodecSpecError(f"codec spec {text!r} has an empty stage: write it as 'qsgd:levels=15+zstd'")
    settings: dict[str, str] = {}
    for item in rest.split(",") if colon else ():
        key, equals, value = (piece.strip() for piece in item.partition("="))
        if not key or not equals:
            raise CodecSpecError(f"codec spec {text!r} has {item!r} where name=value is expected")
        if key in settings:
            raise CodecSpecError(f"codec spec {text!r} sets {key!r} twice")
        settings[key] = value
    return Stage(name.strip(), settings)


def unknown(kind: str, name: str, valid: Collection[str]) -> CodecSpecError:
    """Return the error for a `name` not in `valid`. Its message lists all valid names and suggests a similar one, if any."""
    near = get_close_matches(name, valid, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return CodecSpecError(f"unknown {kind} {name!r}{hint}: valid are {', '.join(sorted(valid)) or 'none'}")


def construct(cls: type[Any], stage: Stage) -> Any:
    """Return an instance of dataclass `cls` with the settings of `stage`. Raises CodecSpecError."""
    kinds = _kinds(cls)  # type: ignore[arg-type]  # mypy doubts that classes can be hashed
    names = [field.name for field in dataclasses.fields(cls)]
    values = {}
    for key, text in stage.settings.items():
        if key not in names:
            raise unknown(f"parameter of codec {stage.id}:", key, names)
        values[key] = _value(stage.id, key, text, kinds[key])
    return cls(**values)


@functools.lru_cache(maxsize=256)
def _kinds(cls: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of class `cls`, by name.

    They are cached, as evaluating them takes most of the time of `construct`.
    """
    return typing.get_type_hints(cls)


def _value(owner: str, key: str, text: str, kind: Any) -> Any:
    """Return `text` as the annotated type `kind`: int, float, bool, str, a Literal, or a union of one of these with None."""
    options = set(typing.get_args(kind)) if isinstance(kind, types.UnionType) else {kind}
    if type(None) in options and text == "":
        return None
    for option in (int, float):
        if option in options:
            try:
                return option(text)
            except ValueError:
                continue
    if bool in options and text in ("true", "false"):
        return text == "true"
    if options & {int, float, bool}:
        wanted = " or ".join(words for option, words in _WORDS.items() if option in options)
        raise CodecSpecError(f"{owner}: {key}={text!r} is not {wanted}")
    return text


def added_later(default: Any) -> Any:
    """Return a dataclass field that specs show only if its value differs from `default`, so that older specs remain valid."""
    return dataclasses.field(default=default, metadata={_LATER: True})


def _show(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(float(value)).removesuffix(".0").replace("e+", "e")  # a + would separate stages
    return str(value)
