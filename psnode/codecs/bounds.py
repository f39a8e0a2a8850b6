"""Checks of constructor arguments. Each raises CodecSpecError with the codec, the parameter, its bound and its value."""

from __future__ import annotations

import math
from collections.abc import Sequence

from psnode.codecs.spec import unknown
from psnode.errors import CodecSpecError


def check_integer(owner: object, name: str, low: int, high: int) -> None:
    """Attribute `name` of `owner` must be an int in low..high."""
    value = getattr(owner, name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise CodecSpecError(f"{_id(owner)}: {name}={value} must be an integer in {low}..{high}")


def check_real(owner: object, name: str, low: float, high: float) -> None:
    """Attribute `name` of `owner` must be a finite number in [low, high]."""
    value = getattr(owner, name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or not low <= value <= high:
        raise CodecSpecError(f"{_id(owner)}: {name}={value} must be a number in [{low:g}, {high:g}]")


def check_choice(owner: object, name: str, valid: Sequence[str]) -> None:
    """Attribute `name` of `owner` must be one of `valid`."""
    value = getattr(owner, name)
    if value not in valid:
        raise unknown(f"{name} of {_id(owner)}:", str(value), valid)


def _id(owner: object) -> str:
    return str(getattr(owner, "id", type(owner).__name__))
