"""Names that users type, compared without regard to case, hyphens and underscores."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from psnode.errors import ConfigurationError

DENSE = "dense"  # downlink that sends the weights themselves


def canonical(name: str) -> str:
    """Return `name` in lower case without hyphens and underscores: ResNet-18, resnet_18 and resnet18 are one name."""
    return name.lower().replace("-", "").replace("_", "")


def choose(kind: str, name: str, choices: Iterable[str], remark: str = "") -> str:
    """Return the member of `choices` that `name` means.

    An exact match is preferred; otherwise canonical forms are compared. Raises ConfigurationError with the nearest match and all
    choices, followed by `remark`. `kind` is the noun of the message, such as "network".
    """
    choices = sorted(choices)
    if name in choices:
        return name
    matches = [choice for choice in choices if canonical(choice) == canonical(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigurationError(f"{kind} {name!r} is ambiguous: write {' or '.join(matches)}")
    near = difflib.get_close_matches(canonical(name), map(canonical, choices), n=1, cutoff=0.5)
    hint = "".join(f"did you mean {choice}? " for choice in choices if near and canonical(choice) == near[0])
    raise ConfigurationError(f"unknown {kind} {name!r}: {hint}the choices are {', '.join(choices)}{remark}")


def settle(kind: str, options: Mapping[str, str], allowed: Iterable[str]) -> dict[str, str]:
    """Return `options` with each key replaced by the name in `allowed` that the key means.

    Raises ConfigurationError for a key that means no such name.
    """
    allowed = sorted(allowed)
    if options and not allowed:
        raise ConfigurationError(f"{kind} {next(iter(options))!r} is not understood: there is nothing to set here")
    return {choose(kind, key, allowed): value for key, value in options.items()}


def positive(kind: str, text: str) -> int:
    """Return `text` as an integer >= 1. Raises ConfigurationError with `kind` and the value otherwise."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ConfigurationError(f"{kind} must be a whole number of at least 1, not {text!r}")
    return value


def boolean(kind: str, text: str) -> bool:
    """Return `text`, true or false, as a bool. Raises ConfigurationError with `kind` and the value for any other text."""
    if text.lower() not in ("true", "false"):
        raise ConfigurationError(f"{kind} must be true or false, not {text!r}")
    return text.lower() == "true"


PASSED = "python:"  # prefix for the class of a task passed to psnode.run; such a class cannot be imported by name


def names_code(value: str | None) -> bool:
    """Return True if a setting's `value` names code that psnode would import."""
    return value is not None and not value.startswith(PASSED)


def names_codec_file(spec: str | None) -> bool:
    """Return True if the spec of a codec begins with FILE:NAME."""
    from psnode.codecs.spec import CODEC_FILE

    return spec is not None and CODEC_FILE in spec


def names_logger_file(names: Iterable[str] | None) -> bool:
    """Return True if any of the loggers `names` is FILE:NAME."""
    return any(map(names_codec_file, names or ()))


def locate_logger(name: str) -> str:
    """Return `name`, from --log-to.

    If it contains the path of a file, the path is made absolute, to be valid in any directory.
    """
    return str(Path(name).expanduser().absolute()) if names_codec_file(name) else name


def names_file(source: str) -> bool:
    """Return True if `source`, the part of --task before a colon, is the path of a file rather than the name of a module."""
    return source.endswith(".py") or os.sep in source


def locate_task(spec: str) -> str:
    """Return `spec`, from --task. If it contains the path of a file, the path is made absolute, to be valid in any directory."""
    source, colon, name = spec.partition(":")
    return f"{Path(source).expanduser().absolute()}{colon}{name}" if names_file(source) else spec
