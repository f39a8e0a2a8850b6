"""A commented cluster.toml with every setting, made of the table of settings."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psnode_ec2.settings import FIELDS

_HEAD = """# A cluster for psnode on EC2. Every key is also a flag (--n-workers 4), and a flag wins. Money is in USD.
# What is commented out shows the default, or an example where the default is nothing.
"""
_SET = ("name", "region", "n_workers", "method", "master_type", "worker_type", "path_to_keyfile")  # the first decisions


def example() -> str:
    """The text of a file that `load` takes as it is."""
    return _HEAD + "".join(f"\n# {rule(field)}\n{_line(field)}\n" for field in FIELDS.values())


def rule(field: dataclasses.Field[Any]) -> str:
    """Description and accepted values of a setting."""
    rules = field.metadata
    parts = [rules["help"]]
    if rules["choices"]:
        parts.append(" or ".join(rules["choices"]))
    elif rules["least"] is not None:
        parts.append(f"at least {rules['least']:g}" if rules["most"] is None else f"{rules['least']:g} to {rules['most']:g}")
    return "; ".join(parts)


def default(field: dataclasses.Field[Any]) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()


def shown(value: Any) -> str:
    """`value` in TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {number}" for key, number in value.items()) + " }" if value else "{}"
    if isinstance(value, tuple):
        return json.dumps(list(value))
    return json.dumps(str(value) if isinstance(value, Path) else value)


def _line(field: dataclasses.Field[Any]) -> str:
    value = default(field)
    if value in ("", None, {}) and field.metadata["example"] is not None:
        value = field.metadata["example"]
    text = f"{field.name} = {shown('' if value is None else value)}"
    return text if field.name in _SET else f"# {text}"
