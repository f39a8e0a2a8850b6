"""Amounts as text for people."""

from __future__ import annotations


def amount(nbytes: float) -> str:
    """Return a number of bytes as text in kB, MB or GB, with at least three digits."""
    unit, size = next((pair for pair in (("GB", 1e9), ("MB", 1e6)) if nbytes >= pair[1]), ("kB", 1e3))
    return f"{proportion(nbytes / size)} {unit}"


def proportion(number: float) -> str:
    """Return a number as text with three significant digits, or all digits before the point if it is large."""
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
