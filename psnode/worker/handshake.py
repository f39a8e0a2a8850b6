"""The start-up of a worker, in which the worker agrees with the master on settings, model and starting point."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from psnode.codecs.device.checks import Verdict
from psnode.codecs.registry import load_codec
from psnode.config import Config
from psnode.config.memory import free_memory
from psnode.config.schedules import OwnRate, learning_rate
from psnode.config.scheme import Scheme
from psnode.errors import ConfigurationError
from psnode.exchange import malloc
from psnode.exchange.compilation import prepare
from psnode.exchange.flat_model import describe
from psnode.exchange.gradients import Gradients
from psnode.exchange.machine import Machine
from psnode.exchange.replica import Replica
from psnode.exchange.routes.route import Route
from psnode.exchange.routes.topologies import passed_on, routes_of, shares_of
from psnode.exchange.sender import GradientSender
from psnode.exchange.shard.consistency import Rule, rule_of
from psnode.exchange.shard.remote.shard_server import ShardServer
from psnode.exchange.trained_model import TrainedModel
from psnode.exchange.update.whole_updates import MakeOptimizer
from psnode.exchange.weights_receiver import Receiver
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan
from psnode.plans.roles import MASTER, Layout
from psnode.plans.rule import plan_of
from psnode.protocol.channel import FrameChannel
from psnode.protocol.link_rates import answer
from psnode.protocol.messages import Ready, Reshard, Setup, Start
from psnode.protocol.wire import Frame, Kind
from psnode.records import checkpoint, tensorfile
from psnode.records.timeline import Tracer
from psnode.task import Data, Task
from psnode.tasks import model_tensors
from psnode.tasks.data.given import IterableExamples, data_of
from psnode.tasks.data.sampler import Sampler
from psnode.tasks.device import choose_device
from psnode.tasks.own_loop import OwnLoop
from psnode.tasks.parameter_groups import ParameterGroup, groups_of
from psnode.worker.backward_hooks import GroupHooks
from psnode.worker.checkpoint_part import CheckpointParts
from psnode.worker.computation import Computation
from psnode.worker.data_share import DataShare, resumed
from psnode.worker.first_use import FirstUse
from psnode.worker.inspection import Findings, inspect, refuse_shared_memory
from psnode.worker.serving_rank import ServingRank
from psnode.worker.training_loop import Worker
from psnode.worker.weights_relay import WeightsRelay

_LOG = logging.getLogger(__name__)

MakeTask = Callable[[Config], Task]


@dataclass(frozen=True)
class WorkerContext:
    """The state of a worker before it knows the plan. `patience`: the longest wait for a message of the master, in seconds."""

    link: FrameChannel
    config: Config
    scheme: Scheme
    directory: Path | None  # the run's, if this rank can read it
    device: torch.device
    model: torch.nn.Module
    data: Data
    layout: Layout
    sampler: Sampler
    computation: Computation
    patience: float
    own_rate: OwnRate | None = None  # Task.learning_rate
    own_optimizer: MakeOptimizer | None = None  # Task.optimizer
    parameter_groups: tuple[ParameterGroup, ...] = ()

    def next_start(self) -> Start:
        """Wait for the next PLAN message and return it. PROBE frames are answered meanwhile.

        All later frames of this rank carry the job digest of this message.
        """
        start = Start.from_bytes(_awaited(self.link, Kind.PLAN, self.patience).body, MASTER)
        self.link.job = start.job
        return start

    def rehearse(self, start: Start) -> None:
        """Take the steps of a rehearsal (a trial run before the first step), and restore the model afterwards."""
        before = model_tensors.ModelSnapshot(self.model)
        quiet = replace(self.config, hash_every=0, log_interval=start.last_step + 1, timeline=False)
        worker = replace(self, config=quiet).worker(start)
        try:
            worker.receiver.assume(start.step)
            worker.take_steps()
        finally:
            worker.close()
        before.restore()

    def _take_tensors(self, start: Start) -> None:
        """Receive the tensors that `start` announces."""
        for _ in range(start.tensors):
            content = bytes(self.link.expect(Kind.STATE, self.patience).body)
            model_tensors.put_back(self.model, tensorfile.parse(content, "what rank 0 has and this rank does not"))

    def _shard_server(
        self, start: Start, coding: Coding, routes: Sequence[Route], weights: torch.Tensor, tracer: Tracer,
        withdrawn: Callable[[int], None] = lambda rank: None,
    ) -> ShardServer | None:  # fmt: skip
        """Return the server of the groups of which this rank is a root, or None without groups. `withdrawn`: see ShardServer."""
        if not ShardServer.serves(routes, self.link.rank):
            return None
        return ShardServer(
            self.link.transport, start, coding, self.config, rule_of(self.config, self.sampler.workers), routes, weights, tracer,
            parameter_groups=self.parameter_groups, own_optimizer=self.own_optimizer, withdrawn=withdrawn,
        )  # fmt: skip

    def _coding_of(self, start: Start, plan: Plan) -> Coding:
        coding = Coding(plan, self.scheme if start.scheme is None else Scheme.from_dict(start.scheme))
        if self.config.local is None:  # a plan may have codecs that were not known before it
            prepare(coding, self.config)
        return coding

    def serving_rank(self) -> ServingRank:
        """Wait for the plan, receive the tensors that it announces, and return this rank's server, ready for the first round."""
        start = self.next_start()
        plan = Plan.from_dict(start.plan)
        self._take_tensors(start)
        weights = TrainedModel(self.model, plan, self.device).vector
        coding, routes = self._coding_of(start, plan), routes_of(self.layout, plan, self.config.topology)
        server = self._shard_server(start, coding, routes, weights, Tracer(self.link.rank, enabled=False))
        rate = learning_rate(self.config, start.steps_per_epoch, start.shift, self.own_rate)
        return ServingRank(self.link, server, max(self.config.deadline or 0.0, self.config.pause_deadline), start, rate)

    def first_worker(self) -> Worker:
        """Take the steps of all rehearsals (trial runs), and return the worker, ready for its first step."""
        while (start := self.next_start()).rehearsal:
            self.rehearse(start)
        return self.worker(start)

    def worker(self, start: Start) -> Worker:
        """Receive the tensors that `start` announces, and return the worker, ready for its first step."""
        link, config, rule = self.link, self.config, rule_of(self.config, self.sampler.workers)
        plan = Plan.from_dict(start.plan)
        routes = routes_of(self.layout, plan, config.topology)
        self._take_tensors(start)
        model = TrainedModel(self.model, plan, self.device)
        replica = Replica(model.vector)
        gradients = Gradients(model.parameters, plan, self.device)
        coding = self._coding_of(start, plan)
        sampler = replace(self.sampler, sample_offset=start.sample_shift)
        sender = GradientSender(
            coding,
            link,
            [route.up(link.rank) for route in routes],
            gradients,
            seed=config.seed,
            lr=learning_rate(config, start.steps_per_epoch, start.shift, self.own_rate),
            steps_per_epoch=start.steps_per_epoch,
            epoch_offset=start.shift,
            workers=self.sampler.workers,
        )
        on_host = self._code_on_device(coding, sender, replica) if config.enable_gpu else []
        for line in () if start.rehearsal else on_host:
            _LOG.warning("rank %d: %s", link.rank, line)
        finished = start.step
        if start.restore is not None:
            tensors = _restore(start, link, self.directory, model, sender, self.patience)
            finished = resumed(tensors, sampler, start.step, moves=rule.rounds_go_on)
        tracer = Tracer(link.rank, enabled=config.timeline)
        server = self._shard_server(start, coding, routes, model.vector.cpu(), tracer, sender.forget)
        receiver = Receiver(
            link, plan, replica, [route.down(link.rank) for route in routes], coding.down, tracer,
            max(config.deadline or 0.0, config.pause_deadline), sender.give_back, sender.give_back_parts,
            root=MASTER if passed_on(routes) else None,
        )  # fmt: skip
        early = may_begin_early(config, rule) and not start.waits
        return Worker(
            link=link,
            config=config,
            rule=rule,
            plan=plan,
            start=start,
            model=model,
            replica=replica,
            gradients=gradients,
            receiver=receiver,
            first_use=FirstUse(self.model, receiver, model.vector) if early else None,
            sender=sender,
            checkpoint_parts=CheckpointParts(
                link, self.directory, sender, tracer, config.checkpoint_memory, config.checkpoint_residuals
            ),
            hooks=GroupHooks(model.parameters, plan, gradients.collect, sender.push, start.late),
            computation=self.computation,
            share=DataShare.after(self.data, sampler, finished, start.last_step - start.step),
            deal=self.deal,
            tracer=tracer,
            own_rate=self.own_rate,
            on_host=on_host,
            server=server,
            relay=WeightsRelay(link, routes) if passed_on(routes) else None,
        )

    def _code_on_device(self, coding: Coding, sender: GradientSender, replica: Replica) -> list[str]:
        """Make the device encode gradients and decode weight changes, for codecs that give the same bytes as on the CPU.

        Returns a line for each codec that runs on the CPU instead, with the reason.
        """
        try:
            lines = [verdict.line for verdict in sender.code_on(self.device) if verdict.problem]
            verdicts = [] if coding.down is None else replica.change_on_device(coding.plan, coding.down)
            return lines + [f"the weights' {verdict.line}" for verdict in verdicts if verdict.problem]
        except ConfigurationError as error:
            return [Verdict("every codec", None, str(error)).line]

    def deal(self, deal: Reshard, finished: int, before: DataShare | None) -> DataShare:
        """Return this rank's share in a new division of the examples.

        The share begins after the position that this rank reached in its earlier share, `before`, or after step `finished`
        if `before` is None.
        """
        sampler = self.sampler.dealt(self.link.rank, deal.ranks, deal.sample_shift)
        last = deal.last_step - finished
        if before is not None and before.place:
            finished = sampler.finished(before.place, before.sampler.workers)
        return DataShare.after(self.data, sampler, finished, last)


def may_begin_early(config: Config, rule: Rule) -> bool:
    """Return True if forward passes may begin before their weights have arrived.

    They may not begin early if workers share one process and take turns: a worker that waits for weights during its turn
    would block the other workers, whose gradients these weights need. Nor may they begin early if rounds close without the
    slowest workers.
    """
    return config.overlap and not rule.rounds_go_on and config.local is None


def join(link: FrameChannel, patience: float, make_task: MakeTask, torch_lock: AbstractContextManager[Any]) -> Worker:
    """Take part in the start-up and return the worker, ready for its first step. See `agree`."""
    worker = agree(link, patience, make_task, torch_lock).first_worker()
    malloc.give_back()
    return worker


def join_in_any_role(
    link: FrameChannel, patience: float, make_task: MakeTask, torch_lock: AbstractContextManager[Any]
) -> Worker | ServingRank:
    """Take part in the start-up and return this rank's worker, or its server. See `agree`."""
    context = agree(link, patience, make_task, torch_lock)
    found = context.serving_rank() if link.rank in context.layout.serving else context.first_worker()
    malloc.give_back()
    return found


def agree(link: FrameChannel, patience: float, make_task: MakeTask, torch_lock: AbstractContextManager[Any]) -> WorkerContext:
    """Agree with the master on settings and model, and return the state of this rank before it knows the plan.

    `patience`: the longest wait for each message of the master, in seconds. `torch_lock` is held while torch computes.
    """
    setup = Setup.from_bytes(_awaited(link, Kind.CONFIG, patience).body, MASTER)
    config = Config.from_dict(setup.config)
    if config.codec:
        load_codec(config.codec)
    layout = Layout.of(link.transport.size, config.spares, config.servers)
    device = choose_device(config.enable_gpu and link.rank not in layout.serving, link.transport.local_rank)
    torch.set_num_threads(setup.threads)
    with torch_lock:
        task = make_task(config)
        torch.manual_seed(config.seed)
        model = task.model()
        statistics = model_tensors.check(model, task.statistics(model))
        shares = shares_of(config.topology, layout.workers)
        updates = shares.server if link.rank in layout.serving else shares.worker  # 0 if this rank updates no weights
        parameter_groups = groups_of(task.parameter_groups(model), model, config) if updates else ()
        model.to(device)
        place, workers = layout.place(link.rank), layout.workers
        data = data_of(task.train_data(), config, workers=workers, steps=task.steps_per_epoch, lock=torch_lock)
        if config.resume and link.rank == layout.first and isinstance(data, IterableExamples):
            _LOG.warning("the examples are those of an iterable, which begins anew: they are not those of an unbroken run")
        sampler = Sampler(len(data), place, workers, config.batch_size, config.batches_per_step, config.seed)
        computation = Computation(
            task, model, device, rank=link.rank, seed=config.seed, torch_lock=torch_lock, precision=config.precision,
            weight_unit=config.weight_unit,
        )  # fmt: skip
        agreed = set() if config.resume else model_tensors.persistent_buffers(model) - statistics.keys()
        found = Findings(None, [], "")
        if isinstance(task, OwnLoop):
            refuse_shared_memory(model)
        elif link.rank == layout.first:
            found = inspect(
                computation, model, lambda step: data.batch(sampler.indices(step)[0], np.random.default_rng(0)),
                agreed=agreed, early=may_begin_early(config, rule_of(config, workers)),
            )  # fmt: skip
    directory = _shared(Path(setup.train_dir), setup.mark)
    tensors = [[tensor.name, list(tensor.shape)] for tensor in describe(model)]
    if config.local is None:  # otherwise the master has prepared the codecs of this process
        scheme = Scheme.from_dict(setup.scheme)
        prepare(Coding(plan_of(describe(model), scheme, config), scheme), config)
    link.forward_requests(MASTER)  # forward requests to stop that reach this rank, since only the master can stop the job
    contents = model_tensors.contents(model)
    machine = Machine.here()
    ready = Ready(
        tensors, None if found.backward is None else [[name, seconds] for name, seconds in found.backward.items()], len(data),
        directory is not None, contents, found.late, found.waits, machine.host, machine.cores, machine.arithmetic,
        free_memory(), isinstance(data, IterableExamples),
    )  # fmt: skip
    link.send(MASTER, Kind.READY, ready.to_bytes())
    context = WorkerContext(
        link, config, Scheme.from_dict(setup.scheme), directory, device, model, data, layout, sampler, computation, patience,
        task.own_rate, task.own_optimizer, parameter_groups,
    )  # fmt: skip
    malloc.keep_freed_memory()  # later steps reuse freed memory; memory of the start-up is returned at its end
    return context


def _awaited(link: FrameChannel, kind: Kind, patience: float) -> Frame:
    """Return the next frame of `kind`, and answer PROBE frames until it comes. `patience`: the longest silence, in seconds."""
    while (frame := link.expect(kind, patience, Kind.PROBE, Kind.PING)).kind is not kind:
        if frame.kind is Kind.PROBE:
            answer(link, frame)
    return frame


def _shared(train_dir: Path, mark: str) -> Path | None:
    """Return `train_dir` if it is on a file system that this rank shares with the master, otherwise None."""
    try:
        found = (train_dir / checkpoint.MARK).read_text()
    except OSError:
        return None
    return train_dir if found == mark else None


def _restore(
    start: Start, link: FrameChannel, directory: Path | None, model: TrainedModel, sender: GradientSender, patience: float
) -> dict[str, torch.Tensor]:
    """Restore this worker's feedback state and buffers from the checkpoint, and return all tensors of this worker's part.

    The master sends the part if `start` says so or if this rank cannot read the run's directory. Otherwise this rank reads
    it.
    """
    name = checkpoint.worker_file(link.rank)
    if start.state_follows or directory is None:
        tensors = tensorfile.parse(bytes(link.expect(Kind.STATE, patience).body), name)
    else:
        tensors = checkpoint.Checkpoint.open(directory / checkpoint.CHECKPOINTS / str(start.restore)).tensors(name)
    if not start.state_follows or any(key.startswith("feedback/") for key in tensors):  # otherwise there is no feedback state
        sender.load_state(tensors)
    model.load_buffers({key.removeprefix("buffer/"): value for key, value in tensors.items() if key.startswith("buffer/")})
    return tensors
