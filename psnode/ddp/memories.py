"""The coders of buckets, and the feedback state of tensors (residuals, momenta), which is kept when buckets change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from psnode.codecs.arrays import Floats
from psnode.codecs.sketches.linear import LinearSketch
from psnode.ddp.buckets import Bucket, Job
from psnode.errors import ConfigurationError
from psnode.exchange.segment_coder import CODEBOOK_BYTES, SegmentCoder
from psnode.feedback import Feedback
from psnode.plans.coding import SegmentCoding
from psnode.plans.groups import Plan, Tensor
from psnode.plans.rule import make_plan


class TensorMemories:
    """The feedback state of each tensor on one rank, and the buckets in which tensors are coded.

    The feedback state of a tensor is one array for each kind of memory, such as a residual or a momentum.
    """

    def __init__(self, codec: str, feedback: Feedback, min_compress_bytes: int) -> None:
        self._codec, self._feedback, self._min_compress_bytes = codec, feedback, min_compress_bytes
        self._by_tensor: dict[str, dict[str, Floats]] = {}
        self._codebooks: dict[str, torch.Tensor] = {}  # loaded codebooks whose segments do not exist yet
        self._buckets: dict[int, Bucket] = {}

    def arrays(self, buckets: int) -> dict[str, npt.NDArray[Any]]:
        """Return views of the feedback state and the codebooks, by name.

        Names are `memories/KIND/TENSOR`, and `codebook/BUCKET/SEGMENT` for the first `buckets` buckets.
        """
        found: dict[str, npt.NDArray[Any]] = {
            f"memories/{kind}/{name}": part
            for name, kinds in self._by_tensor.items()
            for kind, part in kinds.items()
            if kind not in self._feedback.scratch
        }
        for number, bucket in self._buckets.items():
            coders = bucket.coders if number < buckets else ()
            found |= {_codebook(number, coder): coder.codebook for coder in coders if coder.codebook.size}
        return found | {key: book.numpy() for key, book in self._codebooks.items()}

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Replace the state by `tensors`, the result of `arrays`. Raises ConfigurationError for any other entry."""
        memories: dict[str, dict[str, Floats]] = {}
        books: dict[str, torch.Tensor] = {}
        for key, value in tensors.items():
            prefix, _, rest = key.partition("/")
            kind, _, name = rest.partition("/")
            known = prefix in ("memories", "codebook") and name and isinstance(value, torch.Tensor)
            if not known or (prefix == "codebook" and value.shape != (CODEBOOK_BYTES,)):
                raise ConfigurationError(f"{key} does not belong to the state of a communication hook")
            if prefix == "codebook":
                books[key] = value.detach().to("cpu", torch.uint8, copy=True)
            else:
                memories.setdefault(name, {})[kind] = value.detach().to("cpu", torch.float32, copy=True).reshape(-1).numpy()
        self._by_tensor, self._codebooks, self._buckets = memories, books, {}

    def rescale(self, factor: float) -> None:
        """Multiply the feedback state by `factor`, because the loss scale has changed."""
        for kinds in self._by_tensor.values():
            for part in kinds.values():
                part *= np.float32(factor)

    def forget_codebooks(self) -> None:
        """Drop the loaded codebooks that no segment uses yet."""
        self._codebooks = {}

    def bucket(self, job: Job) -> Bucket:
        """Return the bucket with the number of `job`.

        If DDP has changed the tensors of this bucket, make new coders, which take over the tensors' feedback state.
        """
        found = self._buckets.get(job.number)
        if found is not None and found.names == job.names:
            return found
        tensors = [Tensor(name, shape) for name, shape in zip(job.names, job.shapes, strict=True)]
        plan = make_plan(tensors, self._codec, group_by="model", min_compress_bytes=self._min_compress_bytes)
        coders = tuple(SegmentCoder(SegmentCoding.of(segment, self._feedback)) for segment in plan.segments)
        for coder in coders:
            self._take_over(coder, plan)
            if coder.codebook.size and (book := self._codebooks.pop(_codebook(job.number, coder), None)) is not None:
                coder.codebook[:] = book.numpy()
                coder.restore()
        merged = tuple(isinstance(coder.codec(0), LinearSketch) and coder.feedback.merges(coder.codec(0)) for coder in coders)
        made = self._buckets[job.number] = Bucket(job.names, plan, coders, merged)
        return made

    def _take_over(self, coder: SegmentCoder, plan: Plan) -> None:
        """Copy the state of a coder's tensors into the coder's arrays, and keep views of these arrays by tensor."""
        segment = coder.segment
        for name, place in plan.covering(segment.start, segment.stop).items():
            first, last = max(place.start, segment.start), min(place.stop, segment.stop)
            within = slice(first - segment.start, last - segment.start)
            kept = self._by_tensor.setdefault(
                name if (first, last) == (place.start, place.stop) else f"{name}:{first - place.start}", {}
            )
            for kind, array in coder.state.items():
                if kind in kept:
                    if kept[kind].size != last - first:
                        raise ConfigurationError(
                            f"the memory of {name} has {kept[kind].size} values, the parameter {last - first}"
                        )
                    array[within] = kept[kind]
                kept[kind] = array[within]


def _codebook(bucket: int, coder: SegmentCoder) -> str:
    return f"codebook/{bucket}/{coder.segment.index}"
