"""Codecs as a communication hook of PyTorch's DistributedDataParallel.

    model = DistributedDataParallel(network)
    model.register_comm_hook(*psnode.ddp.comm_hook("topk:ratio=0.005+fp16"))

Gradients of a bucket are coded on every rank, payloads are gathered by all, and every rank decodes and adds them in the order of
ranks, so that replicas stay bit-identical. Payloads of linear codecs are summed by an all-reduce instead. The hook takes the
place of DDP's own all-reduce: model, loop, optimizer and samplers stay as they are.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from psnode.codecs import Payload, get_codec
from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.finite import all_finite
from psnode.codecs.sketches.linear import LinearSketch
from psnode.errors import ConfigurationError, PsnodeError
from psnode.exchange.collectives import Collectives, Sizes
from psnode.exchange.segment_coder import SegmentCoder
from psnode.feedback import Context, get_feedback
from psnode.plan.groups import ALL, Plan, Tensor, gradient_key, make_plan

__all__ = ["HookState", "comm_hook"]

_NOT_FINITE = -1  # sent as the size of a payload: the gradient of this rank holds NaN or infinity
_FAILED = -2
Memories = dict[str, dict[str, Floats]]


class _Bucket(NamedTuple):
    """Tensors that DDP reduces together: their plan, and a coder for each of its segments."""

    names: tuple[str, ...]
    plan: Plan
    coders: tuple[SegmentCoder, ...]
    merged: tuple[bool, ...]  # the segments whose payloads are summed undecoded


class _Job(NamedTuple):
    """One bucket of one step. `buffer`: flat, of any floating dtype and device, overwritten with the mean."""

    number: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    buffer: torch.Tensor
    done: torch.futures.Future[torch.Tensor]


class HookState:
    """Codec, feedback and memories of one rank.

    Memories are kept by parameter, so they survive the rebuilding of buckets after the first step. `state_dict` holds them;
    every rank saves and loads its own. A thread codes and exchanges buckets in the order in which DDP hands them over, beside
    the backward pass.
    """

    def __init__(
        self,
        codec: str,
        feedback: str | None,
        model: nn.Module | None,
        seed: int,
        min_compress_bytes: int,
        process_group: dist.ProcessGroup | None,
    ) -> None:
        self._spec = codec
        parsed = get_codec(codec)
        self._feedback = get_feedback(feedback or ("none" if parsed.unbiased else "ef"))
        if self._feedback.rescales:
            raise ConfigurationError(
                f"feedback {feedback} needs the learning rate, which DDP's hooks are not told: leave out rescale"
            )
        self._names = {id(parameter): name for name, parameter in model.named_parameters()} if model is not None else {}
        self._seed = seed
        self._min_compress_bytes = min_compress_bytes
        self._parent = process_group
        self._memories: Memories = {}
        self._buckets: dict[int, _Bucket] = {}
        self._step = 0
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.sent_bytes = 0  # payload bytes of this rank so far

    def submit(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Queue a bucket; the future holds its buffer with the mean."""
        if self._thread is None:
            self._start()
        buffer = bucket.buffer()
        devices: list[int | str | torch.device] | None = [buffer.device] if buffer.is_cuda else None
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        parameters = bucket.parameters()
        names = tuple(self._names.setdefault(id(each), f"parameter.{len(self._names)}") for each in parameters)
        shapes = tuple(tuple(each.shape) for each in parameters)
        if buffer.is_cuda:
            torch.cuda.current_stream(buffer.device).synchronize()
        self._jobs.put(_Job(bucket.index(), names, shapes, buffer, done))
        return done

    def state_dict(self) -> dict[str, Any]:
        """The step and the memories, as `memories/KIND/PARAMETER` (flat float32); for a checkpoint of this rank."""
        memories = {
            f"memories/{kind}/{name}": torch.from_numpy(array.copy())
            for name, kinds in self._memories.items()
            for kind, array in kinds.items()
        }
        return {"step": self._step, **memories}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of this rank, in a job of as many ranks. ConfigurationError if it is none."""
        memories: Memories = {}
        for key, value in state.items():
            if key == "step":
                continue
            prefix, _, rest = key.partition("/")
            kind, _, name = rest.partition("/")
            if prefix != "memories" or not name or not isinstance(value, torch.Tensor):
                raise ConfigurationError(f"{key} does not belong to the state of a communication hook")
            memories.setdefault(name, {})[kind] = value.detach().cpu().to(torch.float32).reshape(-1).numpy().copy()
        self._step, self._memories, self._buckets = int(state["step"]), memories, {}

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigurationError("the state of psnode's hook is saved by its state_dict()")

    def _start(self) -> None:
        exchange = Collectives.among(self._parent)
        self._thread = threading.Thread(target=self._serve, args=[exchange], name="psnode-ddp", daemon=True)
        self._thread.start()

    def _serve(self, exchange: Collectives) -> None:
        while True:
            job = self._jobs.get()
            try:
                job.done.set_result(self._reduce(job, exchange))
            except BaseException as error:
                job.done.set_exception(error)  # type: ignore[arg-type]

    def _reduce(self, job: _Job, exchange: Collectives) -> torch.Tensor:
        """The job's buffer, overwritten with the mean over all ranks."""
        if job.number == 0:
            self._step += 1
        bucket = self._bucket(job)
        flat = job.buffer.detach().to("cpu", torch.float32).numpy()
        gradient = _rearranged(flat, job, bucket.plan)
        payloads, failure = self._coded(bucket, gradient, job.number, exchange)
        own = [payload.nbytes for payload in payloads]
        if failure is not None:
            own = [failure if isinstance(failure, int) else _FAILED] * len(bucket.coders)
        sizes = exchange.sizes(own)
        worst = int(sizes.min())
        if worst < 0:
            self._take_back(bucket, gradient, payloads)
        if worst == _FAILED:
            ranks = [rank for rank, row in enumerate(sizes) if row.min() == _FAILED]
            if isinstance(failure, Exception):
                raise failure
            raise PsnodeError(f"rank {ranks[0]} could not code its gradients: its own message says why")
        if worst == _NOT_FINITE:
            job.buffer.fill_(torch.nan)
            return job.buffer
        total = self._summed(bucket, payloads, sizes, exchange)
        total /= np.float32(len(sizes))
        mean = torch.from_numpy(_put_back(total, job, bucket.plan))
        job.buffer.copy_(mean)
        return job.buffer

    def _coded(
        self, bucket: _Bucket, gradient: Floats, index: int, exchange: Collectives
    ) -> tuple[list[Payload], Exception | int | None]:
        """A payload for every segment; or none and the reason: _NOT_FINITE or an exception."""
        if not all_finite(gradient):
            return [], _NOT_FINITE
        payloads = []
        try:
            for coder, merged in zip(bucket.coders, bucket.merged, strict=True):
                segment = coder.segment
                sender = ALL if merged else exchange.rank + 1
                key = gradient_key(self._seed, sender, self._step, index, segment.index)
                part = gradient[segment.start : segment.stop].reshape(segment.shape)
                codec = coder.codec(0, self._step)
                payload = coder.feedback.push(part, coder.state, codec, key, None, Context(exchange.ranks))
                coder.fit(part, payload, key, 0, self._step)
                payloads.append(payload)
        except Exception as error:
            return payloads, error
        self.sent_bytes += sum(payload.nbytes for payload in payloads)
        return payloads, None

    def _take_back(self, bucket: _Bucket, gradient: Floats, payloads: Sequence[Payload]) -> None:
        """Undo pushes that nobody will apply, where the rule allows it: memory += decoded - gradient."""
        for coder, payload in zip(bucket.coders, payloads, strict=False):
            if coder.feedback.sums and coder.feedback.memory is not None:
                memory = coder.state[coder.feedback.memory]
                coder.codec(0, self._step).decode_add(payload, memory)
                memory -= gradient[coder.segment.start : coder.segment.stop]

    def _summed(self, bucket: _Bucket, payloads: Sequence[Payload], sizes: Sizes, exchange: Collectives) -> Floats:
        """The sum of all ranks' decoded gradients, added in the order of ranks."""
        total = np.zeros(bucket.plan.size, np.float32)
        apart = [k for k, merged in enumerate(bucket.merged) if not merged]
        for found in exchange.gathered([payloads[k] for k in apart], sizes[:, apart]):
            for k, payload in zip(apart, found, strict=True):
                self._add(bucket.coders[k], payload, total)
        for coder, payload, merged in zip(bucket.coders, payloads, bucket.merged, strict=True):
            if merged:
                self._add(coder, exchange.merged(payload), total)
        return total

    def _add(self, coder: SegmentCoder, payload: Payload, total: Floats) -> None:
        segment = coder.segment
        coder.codec(0, self._step).decode_add(payload, total[segment.start : segment.stop].reshape(segment.shape))

    def _bucket(self, job: _Job) -> _Bucket:
        """The bucket's plan and coders; made anew, with the memories of its tensors, when DDP has other tensors in it."""
        found = self._buckets.get(job.number)
        if found is not None and found.names == job.names:
            return found
        tensors = [Tensor(name, shape) for name, shape in zip(job.names, job.shapes, strict=True)]
        plan = make_plan(tensors, self._spec, group_by="model", min_compress_bytes=self._min_compress_bytes)
        coders = tuple(SegmentCoder(segment, self._feedback) for segment in plan.segments)
        for coder in coders:
            self._take_over(coder, plan)
        merged = tuple(isinstance(coder.codec(0), LinearSketch) and coder.feedback.merges(coder.codec(0)) for coder in coders)
        made = self._buckets[job.number] = _Bucket(job.names, plan, coders, merged)
        return made

    def _take_over(self, coder: SegmentCoder, plan: Plan) -> None:
        """Fill a coder's memories with those of its tensors, and keep views of them by tensor."""
        segment = coder.segment
        for name, place in plan.covering(segment.start, segment.stop).items():
            first, last = max(place.start, segment.start), min(place.stop, segment.stop)
            within = slice(first - segment.start, last - segment.start)
            kept = self._memories.setdefault(
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


def comm_hook(
    codec: str,
    *,
    feedback: str | None = None,
    model: nn.Module | None = None,
    seed: int = 0,
    min_compress_bytes: int = 4096,
    process_group: dist.ProcessGroup | None = None,
) -> tuple[HookState, Callable[[HookState, GradBucket], torch.futures.Future[torch.Tensor]]]:
    """State and hook for `DistributedDataParallel.register_comm_hook`.

    `codec`: a spec such as "qsgd" or "topk:ratio=0.005+fp16"; tensors with one dimension, or smaller than `min_compress_bytes`,
    travel as they are. `feedback`: a rule such as "ef" or "dgc:momentum=0.9"; None: "ef" for biased codecs, "none" for others.
    `model`: the module whose parameters' names the state is saved under, before DDP wraps it; without it they are counted.
    Raises ConfigurationError.
    """
    return HookState(codec, feedback, model, seed, min_compress_bytes, process_group), reduce_bucket


def reduce_bucket(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook: the mean of a bucket's gradients over all ranks, as a future."""
    return state.submit(bucket)


def _rearranged(flat: Floats, job: _Job, plan: Plan) -> Floats:
    """A copy of a bucket's gradients in the order of its plan."""
    places, out = plan.slices(), np.empty(plan.size, np.float32)
    for name, place in _places(job):
        out[places[name]] = flat[place]
    return out


def _put_back(total: Floats, job: _Job, plan: Plan) -> Floats:
    """A copy of `total`, which is in the order of the plan, in that of the bucket."""
    places, out = plan.slices(), np.empty(plan.size, np.float32)
    for name, place in _places(job):
        out[place] = total[places[name]]
    return out


def _places(job: _Job) -> Iterator[tuple[str, slice]]:
    start = 0
    for name, shape in zip(job.names, job.shapes, strict=True):
        size = int(np.prod(shape, dtype=np.int64))
        yield name, slice(start, start + size)
        start += size
