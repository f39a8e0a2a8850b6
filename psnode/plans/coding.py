"""Coding of a plan's segments: the codecs of both directions in every phase of a run, and the largest sizes of payloads.

A plan and a scheme name codecs and the feedback rule in text. A Coding parses these names once, for all code that encodes,
decodes or checks segments, or predicts their cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from psnode.codecs import Codec
from psnode.codecs.registry import known_codec
from psnode.codecs.rng import Key
from psnode.config.names import DENSE
from psnode.config.ratios import phases
from psnode.config.scheme import Scheme
from psnode.feedback import Feedback, MomentumRule, get_feedback
from psnode.plans.groups import IDENTITY, Plan, Segment

_HALF_PRECISION = frozenset({"fp16", "bf16"})
ALL = 0  # instead of a rank in a key: all workers of a step share the key, so that their payloads can be merged


@dataclass(frozen=True)
class SegmentCoding:
    """Coding of one segment in both directions.

    `rule`: the feedback rule of the run. `feedback`: the rule of this segment, which may differ from `rule` if the segment
    travels uncompressed. `ups`: the codecs of the segment's gradient, one for each phase of a warm-up, in the form that the
    rule needs; the last codec is used in all later steps. `down`: the codec of changes of the segment's weights; None if
    weights are sent whole.
    """

    segment: Segment
    rule: Feedback
    feedback: Feedback
    ups: tuple[Codec, ...]
    down: Codec | None = None

    @classmethod
    def of(
        cls,
        segment: Segment,
        rule: Feedback,
        warmup: Sequence[float] = (),
        *,
        clipped: bool = False,
        down: Codec | None = None,
    ) -> SegmentCoding:
        """Return the coding of a segment with the codec that the segment names.

        `warmup`: the ratios of a sparsifier in the phases of the warm-up, before it uses its own ratio. `clipped`: True if the
        master may use only a part of a push. A segment that travels uncompressed then needs the residual of `rule`, too.
        """
        codec = known_codec(segment.codec)
        needs_memory = clipped and rule.memory is not None
        feedback = rule.dense() if codec.lossless and not needs_memory else rule
        return cls(segment, rule, feedback, tuple(feedback.form(phase) for phase in phases(codec, warmup)), down)

    @property
    def up(self) -> Codec:
        """The codec of the gradient after the warm-up."""
        return self.ups[-1]

    def in_phase(self, phase: int) -> Codec:
        """Return the codec of the gradient in `phase`, counted from 0. Phases after the warm-up use the last codec."""
        return self.ups[min(phase, len(self.ups) - 1)]

    @cached_property
    def limit(self) -> int:
        """Largest size of a gradient's payload in any phase, in bytes."""
        return max(codec.max_nbytes(self.segment.shape) for codec in self.ups)

    @property
    def merges(self) -> bool:
        """True if the workers' payloads of the segment are summed undecoded, and the sum is decoded once.

        Payloads of lossless codecs are not summed undecoded, since this would save no work.
        """
        return not self.up.lossless and self.feedback.merges(self.up)


class Coding:
    """Coding of every segment of `plan` under `scheme`, by the segment's number."""

    def __init__(self, plan: Plan, scheme: Scheme) -> None:
        self.plan, self.scheme = plan, scheme
        self.feedback = get_feedback(scheme.feedback)
        self.is_coded_down = scheme.downlink != DENSE
        downs = _downs(plan, scheme.downlink) if self.is_coded_down else [None] * len(plan.segments)
        self.segments = tuple(
            SegmentCoding.of(segment, self.feedback, scheme.ratio_warmup, clipped=scheme.clips, down=down)
            for segment, down in zip(plan.segments, downs, strict=True)
        )

    @property
    def up(self) -> list[Codec]:
        """The codecs of the segments' gradients after the warm-up."""
        return [each.up for each in self.segments]

    @property
    def down(self) -> list[Codec] | None:
        """The codecs of the payloads in a DELTA frame, by segment; None if the downlink is dense."""
        return [each.down for each in self.segments if each.down is not None] if self.is_coded_down else None

    @property
    def limits(self) -> list[int]:
        """The largest size in bytes of a worker's payload in any phase, by segment."""
        return [each.limit for each in self.segments]

    @property
    def gathering(self) -> MomentumRule | None:
        """The momentum with which the master gathers weight decay while the senders gather gradients with the same momentum.

        None: the optimizer applies the decay.
        """
        return self.feedback.gathering if self.scheme.gathers_decay else None

    def phase(self, steps: int, steps_per_epoch: int) -> int:
        """Return the phase of the warm-up after `steps` steps, counted from 0. After the warm-up the number continues to rise."""
        return int(steps / (self.scheme.ratio_epochs * steps_per_epoch))


def gradient_key(seed: int, rank: int, step: int, group: int, segment: int) -> Key:
    """Return the key with which `rank` codes a segment of its gradient in `step`.

    If payloads are merged undecoded, all workers need the same key: then `rank` is ALL.
    """
    return Key.derive(seed, "gradient", rank, step, group, segment)


def loses(spec: str) -> bool:
    """Return True if a codec or downlink has a noticeable loss: it is neither lossless nor a codec of half precision."""
    codec = None if spec == DENSE else known_codec(spec)
    return codec is not None and not codec.lossless and codec.id not in _HALF_PRECISION


def is_in_vain(codec: Codec, shape: tuple[int, ...]) -> bool:
    """Return True if coding an array of `shape` may save nothing: the payload may be as large as the array.

    Always False for an adaptive codec.
    """
    return not codec.traits.adaptive and codec.max_nbytes(shape) >= 4 * math.prod(shape)


def _downs(plan: Plan, spec: str) -> list[Codec]:
    """Return, by segment, the codec of a change of the segment's weights.

    A change travels uncompressed if `spec` would not make it smaller. If some gradients of the plan are coded, changes also
    travel uncompressed in the segments whose gradients are not coded, such as those of small tensors.
    """
    codec, identity = known_codec(spec).contractive(), known_codec(IDENTITY)
    some_coded = any(segment.codec != IDENTITY for segment in plan.segments)
    return [
        identity if (some_coded and segment.codec == IDENTITY) or is_in_vain(codec, segment.shape) else codec
        for segment in plan.segments
    ]
