"""Rigs that take steps, so that `psnode bench step` and `psnode plan` can measure their duration.

One rig is a worker with its master in the same process. The other rig only runs passes, without a worker. The worker is built
by psnode.worker as in a job, with its hooks, coding thread, feedback and receiver. The master handles a gradient between two
steps: during a timed step, no code of the master runs, and the worker does not wait.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from psnode.codecs import Codec
from psnode.config import Config
from psnode.config.scheme import Scheme
from psnode.errors import ConfigurationError, TransportError
from psnode.exchange.flat_model import describe
from psnode.exchange.routes.topologies import routes_of
from psnode.exchange.shard.consistency import rule_of
from psnode.exchange.shard.shard import Shard
from psnode.exchange.shard.shard_events import GroupClosed, NotApplied, Refused
from psnode.exchange.update.served_model import ServedModel
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan, Segment, Tensor
from psnode.plans.roles import MASTER, Layout
from psnode.plans.rule import plan_of
from psnode.protocol.channel import FrameChannel
from psnode.protocol.messages import Report, Start
from psnode.protocol.round import Round
from psnode.protocol.wire import HEADER_BYTES, Frame, Kind, pack_groups
from psnode.records.timeline import Tracer
from psnode.task import Batch, Data, Task
from psnode.tasks.data.sampler import Sampler
from psnode.tasks.device import to_device
from psnode.transport.loopback import loopback_group
from psnode.worker.computation import Computation
from psnode.worker.handshake import WorkerContext, may_begin_early
from psnode.worker.inspection import Findings, inspect

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

_JOB, _WORKER = 1, 1
_STEPS = 10**9  # more than any measurement takes
_SECONDS = 600.0


class TimedModel:
    """The network, the seed and the batch that all rigs share. The batch lies on `device` from the beginning.

    `coded_there`: True to code gradients and decode changes of weights on the device. `findings`: results of the passes with
    which a worker inspects the network before the first step. `data`: replaces the data of the task.
    """

    def __init__(
        self, task: Task, size: int, device: torch.device, *, coded_there: bool, seed: int, data: Data | None = None
    ) -> None:
        import numpy as np

        self.task, self.size, self.device, self.coded_there, self.seed = task, size, device, coded_there, seed
        data = task.train_data() if data is None else data
        self.batch = to_device(data.batch(np.arange(size), np.random.default_rng(seed)), device)
        model = self.model().to(device)
        self.findings: Findings = inspect(self.computation(model), model, lambda step: self.batch, agreed=(), early=True)
        if self.findings.waits:
            raise ConfigurationError(f"a forward pass of this network waits for all weights, since {self.findings.waits}")

    def model(self) -> torch.nn.Module:
        """Return the network with its initial weights, on the host."""
        import torch

        torch.default_generator.manual_seed(self.seed)  # seeds only the host; torch.manual_seed seeds all devices
        return self.task.model()

    def computation(self, model: torch.nn.Module) -> Computation:
        """Return the computation that runs the forward and backward passes of `model`."""
        return Computation(self.task, model, self.device, rank=_WORKER, seed=self.seed, torch_lock=nullcontext())

    def settle(self) -> None:
        """Block until the device has finished its queued work."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Coded(NamedTuple):
    """Numbers of coordinates that are coded: `there` is the number on the device, and `everywhere` that on host and device."""

    there: int
    everywhere: int

    @property
    def place(self) -> str:
        """The place where coordinates are coded, in a few words for a table."""
        if not self.everywhere:
            return "uncoded"
        share = self.there / self.everywhere
        return {0.0: "host", 1.0: "device"}.get(share, f"device {100 * share:.0f} %, host")


class Alone:
    """A rig of forward and backward passes without psnode. `model` replaces the network, for example by one under DDP."""

    sent = received = 0
    gradients = changes = Coded(0, 0)
    on_host: Sequence[str] = ()

    def __init__(self, ground: TimedModel, model: torch.nn.Module | None = None) -> None:
        self._ground, self._step = ground, 0
        self._model = ground.model().to(ground.device) if model is None else model
        self._computation = ground.computation(self._model)

    def step(self) -> float:
        """Take a step and return its seconds."""
        self._ground.settle()
        self._step += 1
        begin = time.perf_counter()
        self._computation.run(self._step, [self._ground.batch], None)
        self._ground.settle()
        seconds = time.perf_counter() - begin
        self._model.zero_grad()
        return seconds

    def between(self) -> None:
        """Do nothing, because passes without communication need no untimed work between steps."""

    def close(self) -> None:
        """Do nothing, because the rig has no thread."""


class Exchanging:
    """A rig of a worker's passes under a scheme, with all its work on gradients and on changes of weights.

    `sent`, `received`: bytes of the frames of the last step. `gradient_bytes`, `weight_bytes`: the same bytes by group.
    `report`: the worker's report on the last step. With the setting `timeline`, `spans` returns the work of worker and
    master. `plan`: the plan to follow; None for that of the rule. Raises ConfigurationError if the settings do not let the
    worker take one step at a time.
    """

    def __init__(self, ground: TimedModel, config: Config, scheme: Scheme, plan: Plan | None = None) -> None:
        import torch

        self._ground = ground
        rule = rule_of(config, 1)
        if not may_begin_early(config, rule):
            raise ConfigurationError("steps are measured one behind the other: leave out --consistency and --no-overlap")
        model = ground.model()
        shapes = {tensor.name: tensor.shape for tensor in describe(model)}
        if plan is None:
            plan = plan_of([Tensor(name, shapes[name]) for name in ground.findings.backward or shapes], scheme, config)
        coding = Coding(plan, scheme)
        self._link, link = (FrameChannel(end) for end in loopback_group(2))
        self._link.job = link.job = _JOB
        rate = config.lr or scheme.lr
        self._tracer = Tracer(MASTER, enabled=config.timeline)
        self._shard = Shard(
            coding, range(len(plan.groups)), config, ServedModel(ground.model(), plan, torch.empty(plan.size)), self._link, rule,
            lambda now: rate, routes_of(Layout(1), plan), self._tracer, own_optimizer=ground.task.own_optimizer,
        )  # fmt: skip
        self._shard.admit((_WORKER,), 0)
        model.to(ground.device)
        context = WorkerContext(
            link, config, scheme, None, ground.device, model, _Again(ground.batch, ground.size), Layout(1),
            Sampler(ground.size, 0, 1, ground.size, 1, ground.seed), ground.computation(model), _SECONDS,
            ground.task.own_rate,
        )  # fmt: skip
        start = Start(plan.to_dict(), _JOB, 0, _STEPS, 1, None, False, weights_follow=False, late=ground.findings.late)
        self._worker, self._groups, self._version = context.worker(start), len(plan.groups), 0
        self._worker.receiver.assume(0)
        self._steps = self._worker.steps()
        self._passes = next(self._steps)
        self.received = 0
        self.plan, self.report = plan, Report(None, 0, {}, 0.0, 0.0, 0.0, None, None)
        self.gradient_bytes, self.weight_bytes = [0] * self._groups, [0] * self._groups
        self.on_host = self._worker.on_host
        self.gradients = Coded(self._worker.sender.coded_there, _coded(plan, coding.up))
        changed = [segment for segment in plan.segments if self._worker.replica.is_changed_there(segment)]
        self.changes = Coded(_values(changed), _coded(plan, coding.down or ()))

    def step(self) -> float:
        """Take a step and return its seconds. The change of weights that the step applies has arrived before it begins."""
        worker, (number, batches, settled, _) = self._worker, self._passes
        self._ground.settle()
        begin = time.perf_counter()
        outcome = worker.computation.run(number, batches, worker.hooks, first_forward=worker.first_use, settled=settled)
        self._passes = self._steps.send(outcome)
        self._ground.settle()
        return time.perf_counter() - begin

    @property
    def sent(self) -> int:
        """Bytes of the frames that carried the last step's gradient."""
        return self._worker.sender.nbytes

    def between(self) -> None:
        """Make the master apply the gradient of the last step and send the new weights.

        Raises TransportError if the worker sent no gradient, or if the master cannot apply it.
        """
        open_groups, told, self.received = self._groups, False, 0
        self._shard.open(Round.after(self._version))
        while open_groups or not told:
            match event := self._link.next(_SECONDS):
                case Frame(kind=Kind.GRADIENT):
                    self.gradient_bytes[event.group] = HEADER_BYTES + event.body.size
                    self._shard.offer(event)
                case Frame(kind=Kind.REPORT):
                    told, self.report = True, Report.from_bytes(event.body, _WORKER)
                case GroupClosed():
                    open_groups -= 1
                    self.weight_bytes[event.group] = event.nbytes
                    self.received += event.nbytes
                case Frame(kind=Kind.SKIP_STEP):
                    raise TransportError(f"the worker sent no gradient: {bytes(event.body).decode()}")
                case Refused():
                    raise TransportError(f"the master refused a gradient: {event.error}")
                case NotApplied():
                    raise TransportError(event.reason)
        self._version += 1
        number = self._version
        self._link.send(_WORKER, Kind.VERSION_COMPLETE, pack_groups([], 0), step=number, version=number)

    def spans(self) -> list[dict[str, Any]]:
        """Return the spans of master and worker from the first step on (psnode.records.timeline)."""
        return [*self._tracer.events(), *self._worker.tracer.events()]

    def close(self) -> None:
        """End the threads of worker and master."""
        self._steps.close()
        self._worker.close()
        self._shard.__exit__(None, None, None)


def _values(segments: Sequence[Segment]) -> int:
    return sum(segment.size for segment in segments)


def _coded(plan: Plan, codecs: Sequence[Codec]) -> int:
    """Return the number of coordinates in segments whose codec is lossy. `codecs`: one for each segment, or an empty list."""
    return sum(segment.size for segment, codec in zip(plan.segments, codecs, strict=False) if not codec.lossless)


@dataclass(frozen=True)
class _Again:
    """Data that return the same batch for all indices. It is both a `Data` and a `Feeding` of psnode.worker.data_share."""

    found: Batch
    size: int

    def __len__(self) -> int:
        return self.size

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        """Return the one batch, for any indices."""
        return self.found

    def feed(self, sampler: Sampler, finished: int, last: int) -> _Again:
        """Return this object, which is also the iterator over the batches of all steps."""
        return self

    def __next__(self) -> list[Batch]:
        return [self.found]

    def close(self) -> None:
        """Do nothing, because no resource is held."""
