"""Storage of the memories of a worker's segments, and their names in a checkpoint. GradientSender changes the memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from psnode.codecs.arrays import Floats
from psnode.codecs.pages import untouched
from psnode.errors import CheckpointError
from psnode.exchange.segment_coder import CODEBOOK_BYTES, SegmentCoder
from psnode.plans.groups import Plan
from psnode.records import state_names
from psnode.records.state_names import BOOKS, CODEBOOK, FEEDBACK, RATE, ConstantRange

Tensors = dict[str, torch.Tensor]


class FeedbackMemories:
    """Storage of memories: one float32 vector per memory, in plan order. A segment or a tensor has a slice of the vector.

    Pages of a vector that belong to no segment with this memory are never written, so they take no memory of the machine.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._places = state_names.places(plan)
        self._vectors: dict[str, Floats] = {}

    def vector(self, name: str) -> Floats:
        """Return the vector of the memory called `name`. It is made of zeros at the first call."""
        if name not in self._vectors:
            self._vectors[name] = untouched(self._plan.size)
        return self._vectors[name]

    def state(self, coders: Sequence[SegmentCoder]) -> Tensors:
        """Return views of all memories and codebooks, and copies of learning rates, for a checkpoint.

        `coders`: the coders of all segments, in order.
        """
        found = {f"{FEEDBACK}{key}": torch.from_numpy(part) for key, part in self._held(coders).items()}
        for coder, name in zip(coders, state_names.ranges(self._plan, self._plan.segments), strict=True):
            if coder.codebook.size:
                found[f"{BOOKS}{name}"] = torch.from_numpy(coder.codebook)
        rates = [
            ConstantRange(coder.segment.start, coder.segment.stop, coder.rate) for coder in coders if coder.feedback.rescales
        ]
        by_tensor = state_names.spread(self._plan, rates, torch.float64)
        return found | {f"{FEEDBACK}{RATE}/{name}": value for name, value in by_tensor.items()}

    def load(self, coders: Sequence[SegmentCoder], tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the result of `state`, which another plan may have written. Raises CheckpointError if it does not fit this run.

        If a tensor was not compressed in the other plan, its memory begins with zeros. If a tensor is no longer compressed,
        but its memory holds a value other than 0, the tensor keeps this memory, which is then sent with the next gradient.
        Codebooks of segments that no longer exist are ignored.
        """
        own = {key: value for key, value in tensors.items() if key.startswith(FEEDBACK)}
        self._check(coders, own)
        for coder, inside in zip(coders, state_names.overlaps(self._plan, self._plan.segments), strict=True):
            if any(self._owes(own, coder.forgone, name, part) for name, part in inside.items()):
                coder.remember()
        for key, part in self._held(coders).items():
            if (value := own.get(f"{FEEDBACK}{key}")) is not None:
                torch.from_numpy(part).copy_(value)
        self._load_rates(coders, own)
        for coder, name in zip(coders, state_names.ranges(self._plan, self._plan.segments), strict=True):
            if coder.codebook.size and (book := own.get(f"{BOOKS}{name}")) is not None:
                coder.codebook[:] = book.numpy()
                coder.restore()

    def _check(self, coders: Sequence[SegmentCoder], tensors: Mapping[str, torch.Tensor]) -> None:
        """Raise CheckpointError if a loaded entry names a memory or tensor that this run does not have, or has a wrong size."""
        memories = {name for coder in coders for name in (*coder.state, coder.forgone)}
        for key, value in tensors.items():
            memory, _, name = key.removeprefix(FEEDBACK).partition("/")
            where = self._places.get(name, slice(0, 0))
            fits = value.dim() == 1 and memory in memories and value.numel() == where.stop - where.start > 0
            if memory == RATE:  # the code that reads the rate checks its size
                fits = name in self._places
            elif memory == CODEBOOK:
                fits = value.shape == (CODEBOOK_BYTES,)
            if not fits:
                problem = f"{key[:200]} is unknown or of another size"
                raise CheckpointError(f"the checkpoint's worker state does not fit this run: {problem}")

    def _held(self, coders: Sequence[SegmentCoder]) -> dict[str, Floats]:
        """Return the memories in use, by name MEMORY/TENSOR.

        A tensor has a memory if one of the segments in which it has a part has this memory.
        """
        return {
            f"{memory}/{name}": self._vectors[memory][self._places[name]]
            for coder, inside in zip(coders, state_names.overlaps(self._plan, self._plan.segments), strict=True)
            for memory in coder.state
            if memory not in coder.feedback.scratch
            for name in inside
        }

    def _owes(self, tensors: Mapping[str, torch.Tensor], memory: str | None, name: str, part: slice) -> bool:
        """Return True if `memory` of tensor `name` in a checkpoint has a nonzero value in `part`, a range of the flat vector."""
        value, start = tensors.get(f"{FEEDBACK}{memory}/{name}"), self._places[name].start
        return value is not None and bool(value[part.start - start : part.stop - start].any())

    def _load_rates(self, coders: Sequence[SegmentCoder], tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the learning rates in whose units rescaled residuals are kept.

        If the coordinates of a segment have different rates, the segment gets the largest of these rates, and its residual is
        converted to this unit.
        """
        runs = state_names.collected(self._plan, tensors, f"{FEEDBACK}{RATE}/")
        for coder in coders if any(run.value for run in runs) else ():
            if not coder.feedback.rescales or coder.feedback.memory is None:
                continue
            pieces = state_names.within(runs, coder.segment)
            coder.rate = max((run.value for run in pieces), default=0.0)
            for run in pieces:
                if run.value not in (0.0, coder.rate):
                    self._vectors[coder.feedback.memory][run.start : run.stop] *= np.float32(run.value / coder.rate)
