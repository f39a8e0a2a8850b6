"""The coding of a plan's segments: codec forms of both directions in every phase of a run, and the limits of payloads.

Plan and scheme name codecs and the feedback rule in text. A Coding parses them once; code that encodes, decodes, checks or
predicts a segment asks it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from psnode.codecs import Codec, get_codec
from psnode.codecs.rng import Key
from psnode.config.names import DENSE
from psnode.config.ratios import phases
from psnode.config.scheme import Scheme
from psnode.feedback import Feedback, Gathering, get_feedback
from psnode.plan.groups import IDENTITY, Plan, Segment

ALL = 0  # in the place of a rank: payloads can be merged if all workers of a step share one key


@dataclass(frozen=True)
class SegmentCoding:
    """The forms in which one segment crosses the links.

    `rule`: the run's feedback rule; `feedback`: the one that this segment follows. `ups`: the codec of its gradient in each phase
    of a warm-up, in the form that the rule needs; the last holds for all later steps. `down`: the codec of a change of its
    weights; None if weights travel whole.
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
        """The coding of a segment with the codec that it names.

        `warmup`: the sparsifier's ratio in each phase before the codec's own. `clipped`: the master may use a part of a push, so
        that a segment which travels as it is needs the rule's memory as well.
        """
        codec = get_codec(segment.codec)
        needs_memory = clipped and rule.memory is not None
        feedback = rule.dense() if codec.lossless and not needs_memory else rule
        return cls(segment, rule, feedback, tuple(feedback.form(phase) for phase in phases(codec, warmup)), down)

    @property
    def up(self) -> Codec:
        """The codec of the gradient after the warm-up."""
        return self.ups[-1]

    def in_phase(self, phase: int) -> Codec:
        """The codec of the gradient in `phase` of the warm-up, counted from 0, or after it."""
        return self.ups[min(phase, len(self.ups) - 1)]

    @cached_property
    def limit(self) -> int:
        """The most bytes of a gradient's payload in any phase."""
        return max(codec.max_nbytes(self.segment.shape) for codec in self.ups)

    @property
    def merges(self) -> bool:
        """True if workers' payloads can be summed undecoded and decoded once; not lossless ones: adding them is as much work."""
        return not self.up.lossless and self.feedback.merges(self.up)


class Coding:
    """The coding of every segment of `plan` under `scheme`, by the segment's number."""

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
        """The codec of every segment's part of a DELTA frame; None if the downlink is dense."""
        return [each.down for each in self.segments if each.down is not None] if self.is_coded_down else None

    @property
    def limits(self) -> list[int]:
        """The most bytes that a worker's payload of each segment has, in any phase."""
        return [each.limit for each in self.segments]

    @property
    def gathering(self) -> Gathering | None:
        """The momentum with which the master gathers weight decay in place of the sender; None: as the optimizer defines it."""
        return self.feedback.gathering if self.scheme.gathers_decay else None

    def phase(self, steps: int, steps_per_epoch: int) -> int:
        """The phase of the warm-up, counted from 0, after `steps` steps; phases after the last change nothing."""
        return int(steps / (self.scheme.ratio_epochs * steps_per_epoch))


def gradient_key(seed: int, rank: int, step: int, group: int, segment: int) -> Key:
    """The key under which `rank` codes a segment of its gradient of `step`; ALL in its place where payloads are merged."""
    return Key.derive(seed, "gradient", rank, step, group, segment)


def is_in_vain(codec: Codec, shape: tuple[int, ...]) -> bool:
    """True if payloads of `codec` may be as large as an array of `shape`; one that is made for others is trusted."""
    return not codec.traits.adaptive and codec.max_nbytes(shape) >= 4 * math.prod(shape)


def _downs(plan: Plan, spec: str) -> list[Codec]:
    """The codec of a change of each segment's weights.

    Segments that travel up as they are, among others that are coded, travel down so too: they are the small tensors.
    So does whatever the codec would not make smaller.
    """
    codec, identity = get_codec(spec).contractive(), get_codec(IDENTITY)
    some_coded = any(segment.codec != IDENTITY for segment in plan.segments)
    return [
        identity if (some_coded and segment.codec == IDENTITY) or is_in_vain(codec, segment.shape) else codec
        for segment in plan.segments
    ]
