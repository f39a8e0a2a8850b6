"""Checks of constructor arguments.

The CodecSpecError that they raise names the codec, the parameter, its value and the valid values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from psnode.codecs.spec import unknown
from psnode.errors import CodecSpecError


def check_integer(owner: object, name: str, low: int, high: int) -> None:
    """Raise CodecSpecError unless the attribute `name` of `owner` is an int from `low` to `high`."""
    value = getattr(owner, name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise CodecSpecError(f"{_id(owner)}: {name}={value} must be an integer in {low}..{high}")


def check_real(owner: object, name: str, low: float, high: float) -> None:
    """Raise CodecSpecError unless the attribute `name` of `owner` is a finite number from `low` to `high`."""
    value = getattr(owner, name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or not low <= value <= high:
        raise CodecSpecError(f"{_id(owner)}: {name}={value} must be a number in [{low:g}, {high:g}]")


def check_choice(owner: object, name: str, valid: Sequence[str]) -> None:
    """Raise CodecSpecError unless the attribute `name` of `owner` is one of the values `valid`."""
    value = getattr(owner, name)
    if value not in valid:
        raise unknown(f"{name} of {_id(owner)}:", str(value), valid)


def _id(owner: object) -> str:
    return str(getattr(owner, "id", type(owner).__name__))
