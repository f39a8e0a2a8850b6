"""Amounts as text for people, and rates of links from text."""

from __future__ import annotations

import re

from psnode.errors import ConfigurationError

_RATE = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)")
_UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def amount(nbytes: float) -> str:
    """Return a number of bytes as text in kB, MB or GB; see `proportion` for the number of decimals."""
    unit, size = next((pair for pair in (("GB", 1e9), ("MB", 1e6)) if nbytes >= pair[1]), ("kB", 1e3))
    return f"{proportion(nbytes / size)} {unit}"


def proportion(number: float) -> str:
    """Return a number as text: with two decimals below 10, with one decimal below 100, otherwise without decimals."""
    return f"{number:,.{2 if number < 10 else 1 if number < 100 else 0}f}"


def loss_text(loss: float) -> str:
    """Return a loss as text with four decimals, or with three significant digits if its magnitude is 10000 or more."""
    return f"{loss:.4f}" if abs(loss) < 1e4 else f"{loss:.3g}"


def counted(number: int, noun: str) -> str:
    """Return `number` as text, followed by the noun in the singular or plural."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return a time, given in seconds, as text in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def milliseconds(seconds: float) -> str:
    """Return a step's duration, given in seconds, as text: in milliseconds below 10 s, otherwise in seconds."""
    return f"{proportion(1e3 * seconds)} ms" if seconds < 10 else f"{seconds:,.1f} s"


def rate_of(text: str) -> float:
    """Return the bits per second of a rate such as 100mbit or 1gbit. Raises ConfigurationError for any other text."""
    match = _RATE.fullmatch(text)
    if match is None or not float(match[1]):
        raise ConfigurationError(f"--rate must be a number above 0 with kbit, mbit or gbit, such as 100mbit, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def rate_text(rate: float) -> str:
    """Return a rate in bit/s as text, with two significant digits."""
    unit, size = next((pair for pair in (("Gbit/s", 1e9), ("Mbit/s", 1e6)) if rate >= pair[1]), ("kbit/s", 1e3))
    return f"{float(f'{rate / size:.2g}'):g} {unit}"
