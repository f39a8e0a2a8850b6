"""A commented cluster.toml with every setting, generated from the table of settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psnode.config.declaration import Setting
from psnode.config.plain_json import to_json
from psnode_ec2.settings import FIELDS, rule

_HEAD = """# A cluster for psnode on EC2. Every key is also a flag (--n-workers 4), and a flag wins. Money is in USD.
# What is commented out shows the default, or an example where the default is nothing.
"""
_SET = ("name", "region", "n_workers", "method", "master_type", "worker_type", "path_to_keyfile")  # the first decisions


def example() -> str:
    """Return the text of a settings file that `load` accepts unchanged."""
    return _HEAD + "".join(f"\n# {rule(setting)}\n{_line(setting)}\n" for setting in FIELDS.values())


def shown(value: Any) -> str:
    """Return `value` as TOML text."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{to_json(key)} = {number}" for key, number in value.items()) + " }" if value else "{}"
    if isinstance(value, tuple):
        return to_json(list(value))
    return to_json(str(value) if isinstance(value, Path) else value)


def spelled(setting: Setting) -> Any:
    """Return the default of a setting, or the word that stands for this value in the file, if one exists."""
    return next((word for word, value in setting.rules.words.items() if value == setting.default), setting.default)


def _line(setting: Setting) -> str:
    value = spelled(setting)
    if value in ("", None, {}) and setting.rules.example is not None:
        value = setting.rules.example
    text = f"{setting.name} = {shown('' if value is None else value)}"
    return text if setting.name in _SET else f"# {text}"
