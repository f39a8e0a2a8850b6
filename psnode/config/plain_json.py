"""The writer of psnode's JSON records. NaN and infinity, which JSON lacks and most readers refuse, are written as null."""

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
    """Return the JSON text of `value`. The options are those of json.dumps; numbers that are not finite become null."""

    def written(each: Any) -> str:
        return json.dumps(
            each, indent=indent, separators=separators, sort_keys=sort_keys, ensure_ascii=ensure_ascii, default=default,
            allow_nan=False,
        )  # fmt: skip

    try:
        return written(value)
    except ValueError:  # copy the value only in this case: most values contain only finite numbers
        return written(_finite(value))


def _finite(value: Any) -> Any:
    """Return a copy of `value` in which None replaces floats that are not finite."""
    if isinstance(value, dict):
        return {_finite(key): _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
