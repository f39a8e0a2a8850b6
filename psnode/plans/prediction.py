"""The predicted step of a plan, which a run compares with its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


def _plain(text: object) -> str:
    """Return a text of a file without characters that could control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


@dataclass(frozen=True)
class Prediction:
    """The `step` in seconds that was predicted for `workers` workers, from `source`, and the resource that `binds`, if known."""

    step: float
    workers: int
    source: str
    binds: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction in types that JSON has."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the prediction that `to_dict` recorded. Raises ValueError for anything else."""
        try:
            found = cls(float(fields["step"]), int(fields["workers"]), _plain(fields["source"]), _plain(fields["binds"]))
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"a prediction has step, workers, source and binds: {error}") from error
        if not (math.isfinite(found.step) and found.step > 0 and found.workers > 0):
            raise ValueError(f"a step of {found.step} s of {found.workers} workers cannot be predicted")
        return found

    def beside(self, measured: float) -> dict[str, Any]:
        """Return the prediction with the `measured` seconds of a step, and `off`, the share by which these are longer."""
        return {**self.to_dict(), "measured": measured, "off": measured / self.step - 1}
