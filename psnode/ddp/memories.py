"""Coders of buckets, and the memories of their tensors, which outlive the buckets."""

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
from psnode.plan.coding import SegmentCoding
from psnode.plan.groups import Plan, Tensor
from psnode.plan.rule import make_plan


class TensorMemories:
    """The memories of each tensor on one rank, and the buckets in which it was coded."""

    def __init__(self, codec: str, feedback: Feedback, min_compress_bytes: int) -> None:
        self._codec, self._feedback, self._min_compress_bytes = codec, feedback, min_compress_bytes
        self._by_tensor: dict[str, dict[str, Floats]] = {}
        self._codebooks: dict[str, torch.Tensor] = {}  # as loaded, until their segments exist
        self._buckets: dict[int, Bucket] = {}

    def arrays(self, buckets: int) -> dict[str, npt.NDArray[Any]]:
        """Return views of memories as `memories/KIND/TENSOR` and of codebooks of the first `buckets` as
        `codebook/BUCKET/SEGMENT`."""
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
        """Inverse of `arrays`. Raises ConfigurationError for any other entry of `tensors`."""
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
        """Multiply all memories by `factor`, because gradients now have other units."""
        for kinds in self._by_tensor.values():
            for part in kinds.values():
                part *= np.float32(factor)

    def forget_codebooks(self) -> None:
        """Drop the loaded codebooks, whose segments no longer exist."""
        self._codebooks = {}

    def bucket(self, job: Job) -> Bucket:
        """Return the bucket's plan and coders; recreated, with the memories of its tensors, when DDP changes its tensors."""
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
        """Fill a coder's memories with those of its tensors, and keep views of them by tensor."""
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
