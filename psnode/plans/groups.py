"""Plans: segments that are coded, and groups whose segments travel together.

The trainable tensors of a model lie in one flat float32 vector, in the order in which back-propagation finishes their
gradients. A Segment is the input of one encode call, and a Group is the content of one frame; both are ranges of this
vector. Every rank uses the same Plan, and --resume reuses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psnode.errors import ConfigurationError

IDENTITY = "identity"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A trainable tensor of the model: its name in the state dict and its shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Segment:
    """Coordinates [start, start + size) of the flat vector, which one call of `codec` codes as an array of `shape`."""

    index: int
    codec: str
    start: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        """One past the last coordinate."""
        return self.start + self.size


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbouring segments that travel in one frame and are decoded and updated together."""

    index: int
    segments: tuple[Segment, ...]

    @property
    def start(self) -> int:
        """First coordinate."""
        return self.segments[0].start

    @property
    def stop(self) -> int:
        """One past the last coordinate."""
        return self.segments[-1].stop

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Plan:
    """The `tensors`, in the order in which they lie in the flat vector, and the `groups` that cover this vector."""

    tensors: tuple[Tensor, ...]
    groups: tuple[Group, ...]

    @property
    def size(self) -> int:
        """Number of coordinates d."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments, in order."""
        return tuple(segment for group in self.groups for segment in group.segments)

    def slices(self) -> dict[str, slice]:
        """Return the ranges of the tensors in the flat vector, by name."""
        found, start = {}, 0
        for tensor in self.tensors:
            found[tensor.name] = slice(start, start + tensor.size)
            start += tensor.size
        return found

    def covering(self, start: int, stop: int) -> dict[str, slice]:
        """Return the ranges of the tensors that have a part in coordinates [start, stop), by name and in order."""
        return {name: place for name, place in self.slices().items() if place.start < stop and start < place.stop}

    def difference(self, shapes: Mapping[str, tuple[int, ...]]) -> str:
        """Return a text about the first tensor that differs between the plan and a model's `shapes`; empty if no tensor differs.

        In the text, `there` means the plan and `now` means the model.
        """
        own = {tensor.name: tensor.shape for tensor in self.tensors}
        for name in (*own, *shapes):
            if name not in shapes:
                return f"{name} is trained there and not now"
            if name not in own:
                return f"{name} is trained now and not there"
            if own[name] != shapes[name]:
                return f"{name} is of shape {own[name]} there and {shapes[name]} now"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Return the plan in a form that JSON can hold."""
        return {
            "tensors": [[tensor.name, list(tensor.shape)] for tensor in self.tensors],
            "groups": [[[s.codec, s.start, list(s.shape)] for s in group.segments] for group in self.groups],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Return a plan from the result of to_dict. Raises ConfigurationError if the groups do not cover the tensors exactly."""
        try:
            tensors = tuple(Tensor(str(name), tuple(map(int, shape))) for name, shape in data["tensors"])
            groups, index = [], 0
            for number, group in enumerate(data["groups"]):
                segments = []
                for codec, start, shape in group:
                    segments.append(Segment(index, str(codec), int(start), tuple(map(int, shape))))
                    index += 1
                groups.append(Group(number, tuple(segments)))
            plan = cls(tensors, tuple(groups))
            position = 0
            for segment in plan.segments:
                if segment.start != position or any(n < 0 for n in segment.shape):
                    raise ValueError(f"segment {segment.index} starts at {segment.start}, expected {position}")
                position = segment.stop
            if position != plan.size or any(not group.segments for group in plan.groups):
                raise ValueError(f"groups cover {position} of {plan.size} coordinates")
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"the plan cannot be used: {error}") from error
        return plan
