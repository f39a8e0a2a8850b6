"""The rule without memory, for unbiased codecs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Floats
from psnode.codecs.base import RandomSource
from psnode.feedback.feedback_rule import ALONE, Context, Feedback, State


@dataclass(frozen=True, repr=False)
class NoFeedback(Feedback):
    """Rule that codes every gradient without a memory; for unbiased codecs."""

    id: ClassVar[str] = "none"

    def init(self, size: int) -> State:
        return {}

    def push(
        self,
        gradient: Floats,
        state: State,
        codec: Codec,
        rng: RandomSource,
        out: Bytes | None = None,
        context: Context = ALONE,
    ) -> Payload:
        return codec.encode(gradient, rng, out=out)
