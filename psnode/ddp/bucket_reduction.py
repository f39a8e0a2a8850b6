"""The reduction of a bucket: its gradients are coded, exchanged and replaced by their mean over all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from psnode.codecs import Payload
from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.finite import all_finite
from psnode.ddp.buckets import Bucket, Job, put_back, rearranged
from psnode.ddp.memories import TensorMemories
from psnode.ddp.undo import Undo
from psnode.ddp.used import by_any, packed
from psnode.errors import PsnodeError
from psnode.exchange.collectives import Collectives, Sizes
from psnode.exchange.segment_coder import SegmentCoder
from psnode.feedback import Context
from psnode.plans.coding import ALL, gradient_key

_NOT_FINITE = -1  # sent as the size of a payload: the gradient of this rank holds NaN or infinity
_FAILED = -2  # sent as the size of a payload: coding raised an exception on this rank


class BucketReduction:
    """Reduces the buckets of this rank with those of all other ranks.

    `memories`: the residuals and other state of the codecs and feedback rules. `undo` keeps their values from before a step.
    """

    def __init__(self, memories: TensorMemories, undo: Undo, seed: int) -> None:
        self._memories, self._undo, self._seed = memories, undo, seed
        self.sent_bytes = 0
        self.sent_by_all = 0  # payload bytes that all ranks together have sent
        self.received_by_all = 0

    def reduce(self, job: Job, step: int, exchange: Collectives) -> bool:
        """Overwrite the job's buffer with the mean over all ranks, and return True if the mean is finite.

        The result is the same on all ranks. If this rank could not code its gradients, raises the error of its codec. If
        another rank could not, raises PsnodeError.
        """
        bucket = self._memories.bucket(job)
        flat = job.buffer.detach().to("cpu", torch.float32).numpy()
        gradient = rearranged(flat, job, bucket.plan)
        self._undo.keep(job.number, bucket)
        payloads, failure = self._coded(bucket, gradient, job.number, step, exchange)
        own = [payload.nbytes for payload in payloads]
        if failure is not None:
            own = [failure if isinstance(failure, int) else _FAILED] * len(bucket.coders)
        announced = exchange.sizes([*own, *packed(job.used)])
        sizes, used = announced[:, : len(own)], by_any(announced[:, len(own) :], len(job.used))
        worst = int(sizes.min())
        if worst == _FAILED:
            ranks = [rank for rank, row in enumerate(sizes) if row.min() == _FAILED]
            if isinstance(failure, Exception):
                raise failure
            raise PsnodeError(f"rank {ranks[0]} could not code its gradients: see its own message")
        if worst == _NOT_FINITE:
            job.buffer.fill_(torch.nan)
            return False
        total = self._summed(bucket, payloads, sizes, step, exchange)
        self._count(bucket, sizes)
        total /= np.float32(len(sizes))
        mean = put_back(total, job, bucket.plan)
        self._leave_out(job, bucket, used, flat, mean)
        job.buffer.copy_(torch.from_numpy(mean))
        return all_finite(mean) if job.buffer.dtype == torch.float32 else bool(job.buffer.isfinite().all())

    def _count(self, bucket: Bucket, sizes: Sizes) -> None:
        """Add the bytes of a bucket's payloads to the counts. `sizes`: shape (ranks, payloads), equal on all ranks."""
        sent, summed = int(sizes.sum()), int(sizes[:, np.flatnonzero(bucket.merged)].sum())
        self.sent_by_all += sent
        self.received_by_all += (len(sizes) - 1) * (sent - summed) + summed

    def _leave_out(self, job: Job, bucket: Bucket, used: Sequence[bool], flat: Floats, mean: Floats) -> None:
        """Restore gradients and residuals of tensors that no rank used, since DDP discards the mean of their gradients."""
        places = bucket.plan.slices()
        for (name, place), one_has in zip(job.places(), used, strict=True):
            if not one_has:
                mean[place] = flat[place]
                self._undo.restore_part(job.number, places[name])

    def _coded(
        self, bucket: Bucket, gradient: Floats, index: int, step: int, exchange: Collectives
    ) -> tuple[list[Payload], Exception | int | None]:
        """Return two values: a payload for every segment, and None.

        After a failure, the second is _NOT_FINITE or an exception.
        """
        if not all_finite(gradient):
            return [], _NOT_FINITE
        payloads = []
        try:
            for coder, merged in zip(bucket.coders, bucket.merged, strict=True):
                segment = coder.segment
                sender = ALL if merged else exchange.rank + 1
                key = gradient_key(self._seed, sender, step, index, segment.index)
                part = gradient[segment.start : segment.stop].reshape(segment.shape)
                codec = coder.codec(0, step)
                payload = coder.feedback.push(part, coder.state, codec, key, None, Context(exchange.ranks))
                coder.fit(part, payload, key, 0, step)
                payloads.append(payload)
        except Exception as error:
            return payloads, error
        self.sent_bytes += sum(payload.nbytes for payload in payloads)
        return payloads, None

    def _summed(self, bucket: Bucket, payloads: Sequence[Payload], sizes: Sizes, step: int, exchange: Collectives) -> Floats:
        """Return the sum of all ranks' decoded gradients, added in the order of ranks; float32, in the order of the plan."""
        total = np.zeros(bucket.plan.size, np.float32)
        apart = [k for k, merged in enumerate(bucket.merged) if not merged]
        for found in exchange.gathered([payloads[k] for k in apart], sizes[:, apart]):
            for k, payload in zip(apart, found, strict=True):
                _add(bucket.coders[k], payload, step, total)
        for coder, payload, merged in zip(bucket.coders, payloads, bucket.merged, strict=True):
            if merged:
                _add(coder, exchange.merged(payload), step, total)
        return total


def _add(coder: SegmentCoder, payload: Payload, step: int, total: Floats) -> None:
    segment = coder.segment
    coder.codec(0, step).decode_add(payload, total[segment.start : segment.stop].reshape(segment.shape))
