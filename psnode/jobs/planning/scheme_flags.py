"""A scheme followed by flags of `psnode train`, as in "qsgd --downlink dense", converted to settings by name."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from typing import Any

from psnode.config import settings
from psnode.config.declaration import Setting, nearest
from psnode.errors import ConfigurationError

# settings that must be the same for all compared schemes
_FIXED = frozenset(
    {
        "task", "task_option", "network", "dataset", "data_dir", "batch_size", "seed", "threads", "max_steps", "epochs",
        "batches_per_step", "eval_freq", "log_interval", "train_dir", "resume", "local", "tensorboard",
    }
)  # fmt: skip


def scheme_settings(text: str, fixed: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings in `text`, which contains a scheme followed by flags, or only flags.

    Raises ConfigurationError for an unknown flag, for a flag without a value, and for a setting in _FIXED or `fixed`: all
    compared schemes have the same values of these settings.
    """
    given = {}
    for flag, value in flag_pairs(text):
        found = settings_of(flag)
        if not found:
            known = [setting.flag for setting in settings().values()]
            raise ConfigurationError(f"--scheme {text!r}: unknown flag {flag}{nearest(flag, known)}")
        if found[0].name in _FIXED or found[0].name in fixed:
            raise ConfigurationError(f"--scheme {text!r}: {flag} is the same for all that is compared: leave it out")
        if value is None:
            raise ConfigurationError(f"--scheme {text!r}: {flag} needs a value")
        given[found[0].name] = found[0].parse(value, flag)
    return given


def settings_of(flag: str) -> list[Setting]:
    """Return a list with the setting whose flag or alias is `flag`; the list is empty if there is no such setting."""
    return [setting for setting in settings().values() if flag in (setting.flag, *setting.rules.aliases)]


def flag_pairs(text: str) -> list[tuple[str, str | None]]:
    """Return the flags in `text` with their values. A flag without a value has the value None.

    If the text begins with a scheme, the flag --scheme is added in front.
    """
    try:
        split = shlex.split(text)
    except ValueError as error:
        raise ConfigurationError(f"--scheme {text!r} has an open quotation mark") from error
    words = [part for word in split for part in (word.split("=", 1) if word.startswith("--") else [word])]
    words = ["--scheme", *words] if words and not words[0].startswith("--") else words
    return list(zip(words[::2], [*words[1::2], None], strict=False))
