"""The only writer of JSON. NaN and infinity are not valid JSON and most readers refuse them, so they are written as null."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any


def to_json(
    value: Any,
    *,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
    ensure_ascii: bool = True,
    default: Callable[[Any], Any] | None = None,
) -> str:
    """Return the JSON text of `value`, laid out like json.dumps; numbers that are not finite become null."""

    def written(each: Any) -> str:
        return json.dumps(
            each, indent=indent, separators=separators, sort_keys=sort_keys, ensure_ascii=ensure_ascii, default=default,
            allow_nan=False,
        )  # fmt: skip

    try:
        return written(value)
    except ValueError:  # finite numbers, the usual case, need no copy
        return written(_finite(value))


def _finite(value: Any) -> Any:
    """Return a copy of `value` in which None replaces floats that are not finite."""
    if isinstance(value, dict):
        return {_finite(key): _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
