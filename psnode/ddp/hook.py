"""The communication hook, which queues buckets for a thread that reduces them, and the state of a rank between steps."""

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

from psnode.codecs.registry import known_codec, load_codec
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

_LAST_BUCKET = 5.0  # seconds for which Python's exit waits for an exchange in progress
_Queued = tuple[Job, torch.futures.Future[torch.Tensor]]


class HookState:
    """The hook's state on one rank: codec, feedback rule, residuals and other feedback state.

    The feedback state is kept by parameter, so that it survives when DDP rebuilds its buckets after the first step. `state_dict`
    returns this state. Every rank saves and loads its own state, or `AllRanks` saves the states of all ranks. During the backward
    pass, a thread encodes and exchanges buckets in the order in which DDP submits them. DDP's first buckets differ from its later
    buckets. So in the first step after a state was loaded, the thread waits for all buckets and regroups their tensors into the
    buckets of the loaded state.
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
        codec = load_codec(codec)
        parsed = known_codec(codec)
        self.codec, self.min_compress_bytes = codec, min_compress_bytes
        rule = get_feedback(feedback or ("none" if parsed.unbiased else "ef"))
        self.feedback = repr(rule)
        if rule.rescales:
            raise ConfigurationError(
                f"feedback {feedback} needs the learning rate, which DDP does not pass to hooks: leave out rescale"
            )
        self._names: dict[int, str] = {}
        self._used = Used()
        if model is not None:
            self.name(model)
        self._parent = process_group
        self._assumed: list[int] | None = None  # ranks of the group that was used before the first step, or None
        self._scale = LossScale(scaler)
        self._memories = TensorMemories(codec, rule, min_compress_bytes)
        self._undo = Undo()
        self._reduction = BucketReduction(self._memories, self._undo, seed)
        self._spoilt = False  # True if a bucket of this step is not finite or has failed, so the step's feedback is undone
        self._open = False  # True if a step has begun and its last bucket has not come
        self._order: list[Names] = []  # tensor names in each bucket of the last step
        self._loaded = False  # True if a state was loaded and no step has been taken since
        self._step = 0
        self._jobs: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self._exchange: Collectives | None = None
        self._thread: threading.Thread | None = None

    @property
    def sent_bytes(self) -> int:
        """The payload bytes that this rank has encoded so far."""
        return self._reduction.sent_bytes

    @property
    def traffic(self) -> tuple[int, int]:
        """The payload bytes that all ranks together have sent and received so far; the same on every rank.

        A rank sends each payload once. It receives the payloads of all other ranks, or one sum if the codec's payloads are
        summed. Payloads do not count if they are not exchanged because a gradient is not finite.
        """
        return self._reduction.sent_by_all, self._reduction.received_by_all

    @property
    def exchange(self) -> Collectives:
        """The exchange among the ranks. All ranks must make the first access together, outside a backward pass."""
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
        """Use the parameter names of `model` in saved states. If `model` is DDP, use the names in the wrapped module."""
        model = getattr(model, "_orig_mod", model)
        model = model.module if isinstance(model, DistributedDataParallel) else model
        self._used.watch(model.parameters())
        self._names |= {id(parameter): name for name, parameter in parameters(model)}

    def take_back(self) -> None:
        """Restore the feedback state from before the last step, because the program skips this step.

        Call this on all ranks after the step's backward pass and before the next one. If a gradient was not finite, no call is
        needed.
        """
        self._undo.restore()

    def submit(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Queue a bucket, and return a future for the bucket's buffer, which then holds the mean."""
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
        """Return the state of this rank for a checkpoint.

        Its entries are the step, the tensor names of each bucket, the loss scale if it is known, the feedback state
        (`memories/KIND/PARAMETER`, flat float32) and codebooks.
        """
        tensors = {key: torch.from_numpy(array.copy()) for key, array in self.arrays().items()}
        return {**self.start(), **tensors}

    def start(self) -> dict[str, Any]:
        """Return the part of `state_dict` that is the same on all ranks: the number of steps, the buckets and the loss scale."""
        scale = {} if self._scale.last is None else {"scale": self._scale.last}
        return {"step": self._step, "buckets": [list(names) for names in self._order], **scale}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the feedback state and codebooks as in `state_dict`, but as views of arrays that the next step changes."""
        return self._memories.arrays(len(self._order))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, which `state_dict` returned on this rank in a job with the same number of ranks.

        Raises ConfigurationError for an invalid state.
        """
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
        """Return the process group of the exchange.

        This is the group that the program named, otherwise DDP's group, otherwise the default group of all ranks.
        """
        found = self._parent or group_of(self, self._names) or dist.group.WORLD
        self._assumed = dist.get_process_group_ranks(found)
        return found

    def _look_around(self, bucket: GradBucket) -> None:
        """Find DDP's process group and the scaler of the loss when the first bucket comes.

        Raises ConfigurationError if the program named no group and no DDP is found, or if a state was saved or loaded for other
        ranks than those of the group.
        """
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
                waiting = []  # drop the buckets of an aborted backward pass
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
        """Reduce one bucket, or all buckets together in the first step after a state was loaded."""
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
        """Begin a step: undo an aborted step, and convert the feedback state to the loss scale of this step."""
        if self._open:
            self._undo.restore()
        self._undo.begin()
        factor = self._scale.change()
        if factor != 1:
            self._memories.rescale(factor)
        self._order, self._spoilt, self._open = [], False, True
        self._step += 1

    def _check_start(self, order: list[Names], exchange: Collectives) -> None:
        """Raise ConfigurationError if the ranks continue from different states, or if only some ranks have loaded a state."""
        starts = exchange.sizes([self._step, zlib.crc32(repr(order).encode())])
        if (starts != starts[0]).any():
            steps = ", ".join(f"rank {rank} from step {row[0]}" for rank, row in enumerate(starts))
            raise ConfigurationError(f"communication hooks continue from different states ({steps}): load the same on every rank")


def _end(jobs: queue.SimpleQueue[_Queued | None], thread: threading.Thread) -> None:
    """End a hook's thread before Python exits, since a thread that is still inside torch at exit would crash the process."""
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
    """Return the state and the hook for `DistributedDataParallel.register_comm_hook`.

    `codec`: a spec such as "qsgd" or "topk:ratio=0.005+fp16", or FILE:NAME[:parameter=value] for a codec of your own. Three
    kinds of tensors are sent uncompressed: those with fewer than two dimensions, those smaller than `min_compress_bytes`, and,
    unless the codec is adaptive, those whose payload could be as large as the tensor. `feedback`: a rule such as "ef" or
    "dgc:momentum=0.9"; None means "ef" for biased codecs and "none" for unbiased codecs. `model`: the module whose parameter
    names label the saved state; without a module, parameters are numbered.

    `process_group`: None means the group of the DDP that registers the hook. `scaler`: the GradScaler of the loss, or
    another object with `get_scale()`; None means the GradScaler in use when the first gradients arrive, and False means an
    unscaled loss. Raises ConfigurationError for an invalid codec or feedback rule.
    """
    return HookState(codec, feedback, model, seed, min_compress_bytes, process_group, scaler), reduce_bucket


def reduce_bucket(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return a future for the mean of a bucket's gradients over all ranks. This is the hook that DDP calls."""
    return state.submit(bucket)
