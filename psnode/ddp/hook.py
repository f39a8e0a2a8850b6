"""The hook: a bucket's gradients coded, exchanged, and put back as their mean; and what a rank remembers between steps."""

import atexit
import queue
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]

from psnode.codecs import Payload, get_codec
from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.finite import all_finite
from psnode.ddp.buckets import Bucket, Job, Names, hand_back, put_back, rearranged, regrouped
from psnode.ddp.memories import Memories
from psnode.errors import ConfigurationError, PsnodeError
from psnode.exchange.collectives import Collectives, Sizes
from psnode.exchange.segment_coder import SegmentCoder
from psnode.feedback import Context, get_feedback
from psnode.plan.groups import ALL, gradient_key

_NOT_FINITE = -1  # sent as the size of a payload: the gradient of this rank holds NaN or infinity
_FAILED = -2
_LAST_BUCKET = 5.0  # seconds that the end of the program waits for an exchange in progress
_Queued = tuple[Job, torch.futures.Future[torch.Tensor]]


class HookState:
    """Codec, feedback and memories of one rank.

    Memories are kept by parameter, so they survive the rebuilding of buckets after the first step. `state_dict` holds them; every
    rank saves and loads its own, or `AllRanks` those of all. A thread codes and exchanges buckets in the order in which DDP hands
    them over, beside the backward pass. DDP begins with other buckets than it goes on with: the first step after a state was
    loaded waits for all of them, and is taken in the buckets of that state.
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
        parsed = get_codec(codec)
        rule = get_feedback(feedback or ("none" if parsed.unbiased else "ef"))
        if rule.rescales:
            raise ConfigurationError(
                f"feedback {feedback} needs the learning rate, which DDP's hooks are not told: leave out rescale"
            )
        self._names: dict[int, str] = {}
        if model is not None:
            self.name(model)
        self._seed = seed
        self._parent = process_group
        self._memories = Memories(codec, rule, min_compress_bytes)
        self._order: list[Names] = []  # tensors of each bucket of the last step
        self._loaded = False  # a state, and no step has been taken since
        self._step = 0
        self._jobs: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._exchange: Collectives | None = None
        self._thread: threading.Thread | None = None
        self.sent_bytes = 0  # payload bytes of this rank so far

    @property
    def exchange(self) -> Collectives:
        """The exchange among the ranks, of which all ask for it together; not during a backward pass."""
        if self._exchange is None:
            self._exchange = Collectives.among(self._parent)
        return self._exchange

    def place(self) -> tuple[int, int]:
        """This rank and the number of ranks; (0, 1) without a process group."""
        if not dist.is_initialized():
            return 0, 1
        return dist.get_rank(self._parent), dist.get_world_size(self._parent)

    def name(self, model: nn.Module) -> None:
        """Save the parameters' state under the names that they have in `model`."""
        self._names |= {id(parameter): name for name, parameter in model.named_parameters()}

    def submit(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Queue a bucket; the future holds its buffer with the mean."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, args=[self.exchange], name="psnode-ddp", daemon=True)
            self._thread.start()
            atexit.register(_end, self._jobs, self._thread)
        buffer = bucket.buffer()
        devices: list[int | str | torch.device] | None = [buffer.device] if buffer.is_cuda else None
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        parameters = bucket.parameters()
        names = tuple(self._names.setdefault(id(each), f"parameter.{len(self._names)}") for each in parameters)
        shapes = tuple(tuple(each.shape) for each in parameters)
        if buffer.is_cuda:
            torch.cuda.current_stream(buffer.device).synchronize()
        self._jobs.put((Job(bucket.index(), names, shapes, buffer, bucket.is_last()), done))
        return done

    def state_dict(self) -> dict[str, Any]:
        """Step, buckets, memories (`memories/KIND/PARAMETER`, flat float32) and codebooks; for a checkpoint of this rank."""
        tensors = {key: torch.from_numpy(array.copy()) for key, array in self.arrays().items()}
        return {**self.start(), **tensors}

    def start(self) -> dict[str, Any]:
        """The part of `state_dict` that is the same on all ranks: what is coded next, and in which buckets."""
        return {"step": self._step, "buckets": [list(names) for names in self._order]}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Memories and codebooks as `state_dict` has them, but as views, which the next step changes."""
        return self._memories.arrays(len(self._order))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of this rank, in a job of as many ranks. ConfigurationError if it is none."""
        tensors = {key: value for key, value in state.items() if key not in ("step", "buckets")}
        if len(state) - len(tensors) < 2:
            raise ConfigurationError("the state of a communication hook has a step and buckets: load what its state_dict() gave")
        self._memories.load(tensors)
        self._step, self._order, self._loaded = int(state["step"]), [tuple(names) for names in state["buckets"]], True

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigurationError("the state of psnode's hook is saved by its state_dict()")

    def _serve(self, exchange: Collectives) -> None:
        waiting: list[_Queued] = []
        while (queued := self._jobs.get()) is not None:
            job, done = queued
            if job.number == 0:
                waiting = []  # were those of a backward pass that was broken off
            waiting.append((job, done))
            if self._loaded and not job.last:
                continue
            try:
                self._reduce_all([job for job, _ in waiting], exchange)
                for job, done in waiting:
                    done.set_result(job.buffer)
            except BaseException as error:
                for _, done in waiting:
                    done.set_exception(error)  # type: ignore[arg-type]
            waiting = []

    def _reduce_all(self, jobs: Sequence[Job], exchange: Collectives) -> None:
        """Overwrite the buffers of one job, or of all of the first step after a state was loaded."""
        order = self._order
        if jobs[0].number == 0:
            self._order = []
            if self._loaded or self._step == 0:
                self._check_start(order, exchange)
            self._step += 1
        made = regrouped(jobs, order) if self._loaded else None
        if made is None:
            self._memories.forget_codebooks()
        self._loaded = False
        for job in made or jobs:
            self._order.append(job.names)
            self._reduce(job, exchange)
        if made is not None:
            hand_back(made, jobs)

    def _check_start(self, order: list[Names], exchange: Collectives) -> None:
        """Refuse to begin where ranks have loaded states of different steps, or only some of them have."""
        starts = exchange.sizes([self._step, zlib.crc32(repr(order).encode())])
        if (starts != starts[0]).any():
            steps = ", ".join(f"rank {rank} from step {row[0]}" for rank, row in enumerate(starts))
            raise ConfigurationError(f"communication hooks go on from different states ({steps}): load the same on every rank")

    def _reduce(self, job: Job, exchange: Collectives) -> None:
        """Overwrite the job's buffer with the mean over all ranks."""
        bucket = self._memories.bucket(job)
        flat = job.buffer.detach().to("cpu", torch.float32).numpy()
        gradient = rearranged(flat, job, bucket.plan)
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
            return
        total = self._summed(bucket, payloads, sizes, exchange)
        total /= np.float32(len(sizes))
        mean = torch.from_numpy(put_back(total, job, bucket.plan))
        job.buffer.copy_(mean)

    def _coded(
        self, bucket: Bucket, gradient: Floats, index: int, exchange: Collectives
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

    def _take_back(self, bucket: Bucket, gradient: Floats, payloads: Sequence[Payload]) -> None:
        """Undo pushes that nobody will apply, where the rule allows it: memory += decoded - gradient."""
        for coder, payload in zip(bucket.coders, payloads, strict=False):
            if coder.feedback.sums and coder.feedback.memory is not None:
                memory = coder.state[coder.feedback.memory]
                coder.codec(0, self._step).decode_add(payload, memory)
                memory -= gradient[coder.segment.start : coder.segment.stop]

    def _summed(self, bucket: Bucket, payloads: Sequence[Payload], sizes: Sizes, exchange: Collectives) -> Floats:
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


def _end(jobs: queue.SimpleQueue[_Queued | None], thread: threading.Thread) -> None:
    """End a hook's thread before Python does: one that is still inside torch then takes the whole process down."""
    jobs.put(None)
    thread.join(_LAST_BUCKET)


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
