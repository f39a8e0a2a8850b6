"""The hook: buckets queued for a thread that reduces them step by step, and a rank's state between steps."""

import atexit
import queue
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from psnode.codecs import get_codec
from psnode.ddp.bucket_reduction import BucketReduction
from psnode.ddp.buckets import Job, Names, hand_back, regrouped
from psnode.ddp.memories import TensorMemories
from psnode.ddp.scale import LossScale, Scaler
from psnode.ddp.surroundings import group_of
from psnode.ddp.undo import Undo
from psnode.ddp.used import Used
from psnode.errors import ConfigurationError
from psnode.exchange.collectives import Collectives
from psnode.feedback import get_feedback
from psnode.tasks.tensor_names import parameters, renamed, renaming

_LAST_BUCKET = 5.0  # seconds for which the exit of the program waits for an exchange in progress
_Queued = tuple[Job, torch.futures.Future[torch.Tensor]]


class HookState:
    """Codec, feedback and memories of one rank.

    Memories are kept by parameter, so they survive the rebuilding of buckets after the first step. `state_dict` holds them; every
    rank saves and loads its own, or `AllRanks` those of all. A thread encodes and exchanges buckets in the order in which DDP
    submits them, during the backward pass. DDP's first buckets differ from its later ones: the first step after a state was
    loaded waits for all of them, and is reduced in the buckets of that state.
    """

    def __init__(
        self,
        codec: str,
        feedback: str | None,
        model: nn.Module | None,
        seed: int,
        min_compress_bytes: int,
        process_group: dist.ProcessGroup | None,
        scaler: Scaler | Literal[False] | None = None,
    ) -> None:
        parsed = get_codec(codec)
        rule = get_feedback(feedback or ("none" if parsed.unbiased else "ef"))
        if rule.rescales:
            raise ConfigurationError(
                f"feedback {feedback} needs the learning rate, which DDP does not pass to hooks: leave out rescale"
            )
        self._names: dict[int, str] = {}
        self._used = Used()
        if model is not None:
            self.name(model)
        self._parent = process_group
        self._assumed: list[int] | None = None  # the ranks of the exchange, if it was requested before the first step
        self._scale = LossScale(scaler)
        self._memories = TensorMemories(codec, rule, min_compress_bytes)
        self._undo = Undo()
        self._reduction = BucketReduction(self._memories, self._undo, seed)
        self._spoilt = False  # a bucket of this step is not finite: no rank applies any
        self._open = False  # a step has begun, and its last bucket has not come
        self._order: list[Names] = []  # tensors of each bucket of the last step
        self._loaded = False  # a state was loaded, and no step has been taken since
        self._step = 0
        self._jobs: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._exchange: Collectives | None = None
        self._thread: threading.Thread | None = None

    @property
    def sent_bytes(self) -> int:
        """Payload bytes of this rank so far."""
        return self._reduction.sent_bytes

    @property
    def exchange(self) -> Collectives:
        """Return the exchange among the ranks, all of which must ask for it together; not during a backward pass."""
        if self._exchange is None:
            self._exchange = Collectives.among(self._group())
        return self._exchange

    def place(self) -> tuple[int, int]:
        """Return this rank and the number of ranks; (0, 1) without a process group."""
        if not dist.is_initialized():
            return 0, 1
        group = self._group()
        return dist.get_rank(group), dist.get_world_size(group)

    def name(self, model: nn.Module) -> None:
        """Save the parameters' state under the names that they have in `model`, or in the wrapped module if it is DDP."""
        model = getattr(model, "_orig_mod", model)
        model = model.module if isinstance(model, DistributedDataParallel) else model
        self._used.watch(model.parameters())
        self._names |= {id(parameter): name for name, parameter in parameters(model)}

    def take_back(self) -> None:
        """Return the sent parts of the last step's gradients to the memories: for a step that the program skips.

        Call it between the backward pass and the next one, on all ranks. A step whose gradients are not finite needs no call.
        """
        self._undo.restore()

    def submit(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Queue a bucket; the future holds its buffer with the mean."""
        if self._thread is None:
            self._look_around(bucket)
            self._thread = threading.Thread(target=self._serve, args=[self.exchange], name="psnode-ddp", daemon=True)
            self._thread.start()
            atexit.register(_end, self._jobs, self._thread)
        buffer = bucket.buffer()
        devices: list[int | str | torch.device] | None = [buffer.device] if buffer.is_cuda else None
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
        parameters = bucket.parameters()
        names = tuple(self._names.setdefault(id(each), f"parameter.{len(self._names)}") for each in parameters)
        shapes = tuple(tuple(each.shape) for each in parameters)
        used = self._used.take(parameters, bucket.gradients())
        if buffer.is_cuda:
            torch.cuda.current_stream(buffer.device).synchronize()
        self._jobs.put((Job(bucket.index(), names, shapes, buffer, bucket.is_last(), used), done))
        return done

    def state_dict(self) -> dict[str, Any]:
        """Return step, buckets, memories (`memories/KIND/PARAMETER`, flat float32) and codebooks;
        for a checkpoint of this rank."""
        tensors = {key: torch.from_numpy(array.copy()) for key, array in self.arrays().items()}
        return {**self.start(), **tensors}

    def start(self) -> dict[str, Any]:
        """Return the part of `state_dict` that is the same on all ranks: the next step and its buckets."""
        scale = {} if self._scale.last is None else {"scale": self._scale.last}
        return {"step": self._step, "buckets": [list(names) for names in self._order], **scale}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return memories and codebooks as in `state_dict`, but as views, which the next step changes."""
        return self._memories.arrays(len(self._order))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict` of this rank, in a job with the same number of ranks. Raises ConfigurationError for an
        invalid one."""
        tensors = {key: value for key, value in state.items() if key not in ("step", "buckets", "scale")}
        if not {"step", "buckets"} <= state.keys():
            raise ConfigurationError("the state of a communication hook has a step and buckets: load what its state_dict() gave")
        rename = renaming([name for names in state["buckets"] for name in names])
        self._memories.load(renamed(tensors, rename))
        self._step, self._loaded = int(state["step"]), True
        self._order = [tuple(map(rename, names)) for names in state["buckets"]]
        self._scale.last = float(state["scale"]) if "scale" in state else None
        self._undo.forget()
        self._open = False

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigurationError("the state of psnode's hook is saved by its state_dict()")

    def _group(self) -> dist.ProcessGroup | None:
        """Return the named process group, or DDP's; None, which means all ranks, as long as both are unknown."""
        found = self._parent or group_of(self, self._names) or dist.group.WORLD
        self._assumed = dist.get_process_group_ranks(found)
        return found

    def _look_around(self, bucket: GradBucket) -> None:
        """Find, at the first bucket, DDP's process group and the scaler of the loss."""
        self._scale.seek()
        assumed = self._assumed
        self._parent = self._parent or group_of(self, {*self._names, *map(id, bucket.parameters())})
        if self._parent is None:
            raise ConfigurationError(
                "no DistributedDataParallel is found that has registered the hook: write comm_hook(process_group=...), "
                "dist.group.WORLD for all ranks"
            )
        ranks = dist.get_process_group_ranks(self._parent)
        if assumed not in (None, ranks):
            raise ConfigurationError(
                f"DDP averages over the ranks {ranks}, and a state was saved or loaded for {assumed}: register the hook first, "
                "or write comm_hook(process_group=...)"
            )

    def _serve(self, exchange: Collectives) -> None:
        waiting: list[_Queued] = []
        while (queued := self._jobs.get()) is not None:
            job, done = queued
            if job.number == 0:
                waiting = []  # those of an aborted backward pass
            waiting.append((job, done))
            if self._loaded and not job.last:
                continue
            try:
                self._reduce_all([job for job, _ in waiting], exchange)
                for job, done in waiting:
                    done.set_result(job.buffer)
            except BaseException as error:
                self._spoilt = True
                self._undo.restore()
                for _, done in waiting:
                    done.set_exception(error)  # type: ignore[arg-type]
            waiting = []

    def _reduce_all(self, jobs: Sequence[Job], exchange: Collectives) -> None:
        """Overwrite the buffers of one job, or of all jobs of the first step after a state was loaded."""
        order = self._order
        if jobs[0].number == 0:
            if self._loaded or self._step == 0:
                self._check_start(order, exchange)
            self._begin()
        made = regrouped(jobs, order) if self._loaded else None
        if made is None:
            self._memories.forget_codebooks()
        self._loaded = False
        for job in made or jobs:
            self._order.append(job.names)
            self._spoilt |= not self._reduction.reduce(job, self._step, exchange)
        if jobs[-1].last:
            self._open = False
            if self._spoilt:
                self._undo.restore()
        if made is not None:
            hand_back(made, jobs)

    def _begin(self) -> None:
        """Begin a step: convert memories to the units of its gradients, and take back parts sent in an aborted backward pass."""
        if self._open:
            self._undo.restore()
        self._undo.begin()
        factor = self._scale.change()
        if factor != 1:
            self._memories.rescale(factor)
        self._order, self._spoilt, self._open = [], False, True
        self._step += 1

    def _check_start(self, order: list[Names], exchange: Collectives) -> None:
        """Refuse to begin if ranks have loaded states of different steps, or only some ranks have loaded one."""
        starts = exchange.sizes([self._step, zlib.crc32(repr(order).encode())])
        if (starts != starts[0]).any():
            steps = ", ".join(f"rank {rank} from step {row[0]}" for rank, row in enumerate(starts))
            raise ConfigurationError(f"communication hooks continue from different states ({steps}): load the same on every rank")


def _end(jobs: queue.SimpleQueue[_Queued | None], thread: threading.Thread) -> None:
    """End a hook's thread before Python exits: a thread that is still inside torch then crashes the whole process."""
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
    scaler: Scaler | Literal[False] | None = None,
) -> tuple[HookState, Callable[[HookState, GradBucket], torch.futures.Future[torch.Tensor]]]:
    """Return state and hook for `DistributedDataParallel.register_comm_hook`.

    `codec`: a spec such as "qsgd" or "topk:ratio=0.005+fp16"; tensors with one dimension, or smaller than `min_compress_bytes`,
    are sent uncompressed. `feedback`: a rule such as "ef" or "dgc:momentum=0.9"; None: "ef" for biased codecs, "none" for others.
    `model`: the module, before DDP wraps it, whose parameter names label the state; without it parameters are numbered.
    `process_group`: None for that of the DDP which registers the hook. `scaler`: the GradScaler of the loss, or another object
    with `get_scale()`; None for the one in use when the first gradients arrive, False if the loss is not scaled. Raises
    ConfigurationError.
    """
    return HookState(codec, feedback, model, seed, min_compress_bytes, process_group, scaler), reduce_bucket


def reduce_bucket(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The hook: return the mean of a bucket's gradients over all ranks, as a future."""
    return state.submit(bucket)
