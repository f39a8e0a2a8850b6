"""The predicted step of a plan, which a run compares with its own steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self


def _plain(text: object) -> str:
    """Return `text`, which was read from a file, without characters that could control a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


class PredictedSpan(NamedTuple):
    """Work in a predicted step: its `kind` (of SPANS), its `group` (-1: no group), and its `begin` and `end` in seconds.

    The times are counted from the last update of a group in the previous version, which ends that version.
    """

    kind: str
    group: int
    begin: float
    end: float


# the kinds of spans, with names for people; a span is on one worker, on the rank that updates last, or on a link of the worker
SPANS = {
    "passes": "passes of the worker",
    "apply": "loading of weights",
    "encode": "coding of gradients",
    "in": "gradients on their way",
    "decode": "decoding, of all workers",
    "update": "update, coding of weights",
    "out": "weights on their way",
}
NEAR = 1.02  # two steps count as equally long if the longer one takes at most this multiple of the shorter one
MOST_SPANS = 2000  # in a prediction; if a step has more spans, the prediction keeps no spans


@dataclass(frozen=True)
class Prediction:
    """The duration `step` in seconds that was predicted for `workers` workers, and the source of the prediction.

    `binds`: the resource that limits the step, if known. `spans`: the work of two ranks in the step, or empty if unknown. One
    is the rank that makes the last update (in a star, the master). The other is the worker whose gradient reaches that rank
    last.
    """

    step: float
    workers: int
    source: str
    binds: str = ""
    spans: tuple[PredictedSpan, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction in types that JSON has."""
        found = {"step": self.step, "workers": self.workers, "source": self.source, "binds": self.binds}
        return found | ({"spans": [list(span) for span in self.spans]} if self.spans else {})

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the prediction that `to_dict` recorded. Raises ValueError if `fields` are not a prediction."""
        try:
            told = fields.get("spans", ())
            spans = tuple(PredictedSpan(str(kind), int(group), float(begin), float(end)) for kind, group, begin, end in told)
            found = cls(float(fields["step"]), int(fields["workers"]), _plain(fields["source"]), _plain(fields["binds"]), spans)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"a prediction has step, workers, source and binds: {error}") from error
        if not (math.isfinite(found.step) and found.step > 0 and found.workers > 0):
            raise ValueError(f"a step of {found.step} s of {found.workers} workers cannot be predicted")
        if len(spans) > MOST_SPANS or not all(span.kind in SPANS and 0 <= span.begin <= span.end < math.inf for span in spans):
            raise ValueError("the spans of its step cannot be those of a prediction")
        return found

    def beside(self, measured: float) -> dict[str, Any]:
        """Return the prediction, without its spans, and next to it the `measured` seconds of a step.

        `off` in the result is the excess of the measured over the predicted step, as a share of the predicted step.
        """
        return {**replace(self, spans=()).to_dict(), "measured": measured, "off": measured / self.step - 1}
