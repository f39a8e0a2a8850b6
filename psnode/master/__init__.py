"""The parameter server, which runs on rank 0."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from psnode.config import Config
from psnode.config.scheme import Scheme
from psnode.config.train_settings import OWN, UNDECIDED
from psnode.errors import CheckpointError, PsnodeError, StoppedError, in_one_line
from psnode.exchange import malloc
from psnode.exchange.compilation import prepare
from psnode.exchange.flat_model import describe
from psnode.exchange.flow_control import FlowControl
from psnode.exchange.footprint import Footprint, footprint
from psnode.exchange.machine import Machine
from psnode.exchange.routes.refusals import refuse_other_roots, refuse_unlike_processors
from psnode.exchange.routes.route import Route
from psnode.exchange.routes.topologies import routes_of
from psnode.exchange.shard.consistency import Rule, rule_of
from psnode.exchange.shard.remote.distributed_shard import DistributedShard
from psnode.exchange.shard.shard import Shard
from psnode.exchange.update.served_model import ServedModel
from psnode.master import ending
from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.checkpoints.soundness import Soundness
from psnode.master.evaluated import SessionEvaluations
from psnode.master.events import Events
from psnode.master.example_dealing import ExampleDealing, applied_before
from psnode.master.heartbeat import Heartbeat
from psnode.master.job_state import JobState
from psnode.master.lines.downlink_notice import notice_of
from psnode.master.lines.opening import tell_of_the_bytes, tell_of_the_run
from psnode.master.lines.progress import Fanout, progress
from psnode.master.link_bytes import LinkBytes
from psnode.master.loop import Master
from psnode.master.recorder import StepRecorder
from psnode.master.start.agreement import among, require_one_version, threads_of, what_to_send
from psnode.master.start.decision import Decider, Predict
from psnode.master.start.planned import planned, with_plan
from psnode.master.start.resuming import require_same_model, tell_of_another_end, tell_of_another_plan, tell_of_the_start
from psnode.master.start.startup import gather_ready, job_digest, require_memory, send_start
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan
from psnode.plans.roles import MASTER, Layout
from psnode.plans.rule import plan_of
from psnode.protocol.channel import FrameChannel, RemoteFailureError
from psnode.protocol.messages import Ready
from psnode.protocol.round import Round
from psnode.records.directory import RunDirectory, claim
from psnode.records.history import History
from psnode.records.loggers.observer import Observer, chosen
from psnode.records.machines import write_machines
from psnode.records.metrics import METRICS, RunLog, losses
from psnode.records.timeline import Tracer, write_timeline
from psnode.records.weights import initialise
from psnode.task import Task
from psnode.tasks import model_tensors
from psnode.tasks.device import choose_device
from psnode.tasks.optimizers import require_optimizer
from psnode.tasks.own_loop import OwnLoop
from psnode.tasks.parameter_groups import ParameterGroup, groups_of, recorded, refuse_other_groups
from psnode.transport.barrier import gather_hello
from psnode.transport.base import Transport
from psnode.transport.clock import Clock

_LOG = logging.getLogger(__name__)


def lead(
    transport: Transport, config: Config, make_task: Callable[[Config], Task], hello: bytes, *, predict: Predict | None = None
) -> int:
    """Run a whole job as its master and return the exit code.

    `predict`: predicts the duration of a step under each possible topology; --topology auto chooses by these predictions. If
    the job cannot start or continue, informs the workers and raises the error (see `_explained`).
    """
    link = FrameChannel(transport)
    ranks = Layout.of(transport.size, 0).others
    greetings = gather_hello(transport, hello, config.start_deadline)
    with contextlib.ExitStack() as afterwards:  # work that the workers do not wait for
        try:
            require_one_version(greetings, unlike=config.allow_unlike_versions)
            threads = threads_of(greetings, config.threads)
            torch.set_num_threads(threads[MASTER])
            config = replace(config, threads=threads[MASTER])
            decider = Decider(link, make_task, greetings, threads, predict)
            return _lead(link, config, make_task, threads, afterwards, decider)
        except (Exception, SystemExit) as error:  # may come from the task, or from a program's own functions
            if isinstance(error, RemoteFailureError):
                error.show()
            told = _explained(error, config)
            link.fail(ranks, told)
            if told is error:
                raise
            raise told from error


def _explained(error: Exception | SystemExit, config: Config) -> Exception:
    """Return the error to report for `error`: CheckpointError if the disk is full or read-only, PsnodeError for sys.exit().

    Every other error is returned unchanged. A sys.exit() during the job counts as an error, whatever its exit code is.
    """
    if isinstance(error, SystemExit):
        return PsnodeError(in_one_line(error))
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return error
    where = error.filename or config.directory
    return CheckpointError(f"{where} cannot be written ({error.strerror}): make room and go on with --resume")


def _lead(
    link: FrameChannel,
    config: Config,
    make_task: Callable[[Config], Task],
    threads: Mapping[int, int],
    afterwards: contextlib.ExitStack,
    decider: Decider,
) -> int:
    layout = Layout.of(len(threads), config.spares, config.servers)
    config.check_workers(layout.workers)
    config = with_plan(config)
    task = make_task(config)
    require_optimizer(config, own=task.own_optimizer is not None)
    _tell_of_what_is_not_used(task, config)
    refuse_other_roots(config, constrains=task.constrains)
    device = choose_device(True, link.transport.local_rank, "--gpu-master") if config.gpu_master else None
    torch.manual_seed(config.seed)
    model = task.model()
    statistics = model_tensors.check(model, task.statistics(model))
    if config.init_from is not None and not config.resume:  # before the directory is made, since the weights may be refused
        initialise(model, config.init_from, new_head=config.new_head)
    makers = chosen(config)
    with claim(config) as run:
        refuse_other_roots(run.config, run.scheme.aggregator, downlink=run.scheme.downlink)
        loggers = afterwards.enter_context(Observer(makers, run.path))
        try:
            if run.config.topology == UNDECIDED:
                run = decider.decided(run, constrains=task.constrains, events=Events(run.path, loggers.event))
            if run.config.init_from is not None and config.resume and run.resume_point.checkpoint is None:
                initialise(model, run.config.init_from, new_head=run.config.new_head)
            groups = groups_of(task.parameter_groups(model), model, run.config)
            if config.resume:
                refuse_other_groups(groups, run.resume_point.parameter_groups)
            return _run(link, run, task, model, statistics, layout, threads, groups, loggers, device)
        except StoppedError as error:  # before the first round: summary.json tells why the run has no steps
            ending.begun_in_vain(run, error)
            raise


def _tell_of_what_is_not_used(task: Task, config: Config) -> None:
    """Warn if the task has its own optimizer or learning-rate schedule and the settings select another."""
    for method, there, flag, setting in (
        ("optimizer", task.own_optimizer, "--optimizer", config.optimizer),
        ("learning_rate", task.own_rate, "--lr-schedule", config.lr_schedule),
    ):
        if there is not None and setting != OWN:
            _LOG.warning("Task.%s is not used: %s is %s, and task would use it", method, flag, setting)


def _run(
    link: FrameChannel,
    run: RunDirectory,
    task: Task,
    model: torch.nn.Module,
    statistics: dict[str, str],
    layout: Layout,
    threads: Mapping[int, int],
    groups: tuple[ParameterGroup, ...],
    loggers: Observer,
    device: torch.device | None,
) -> int:
    """Gather the ranks, agree on a plan, build the shard and the master, and serve. Return the exit code."""
    workers = layout.computing
    rule = rule_of(run.config, len(workers))
    ready, need = _gathered(link, run, model, layout, threads)
    step, dealing = run.resume_point.step, _dealing(run, task, rule, workers, ready[workers[0]].examples)
    events = Events(run.path, loggers.event)
    run, plan = planned(link, run, model, {rank: ready[rank] for rank in workers}, dealing, events)
    require_same_model(run.resume_point, plan, ready[workers[0]].tensors)
    tell_of_the_run(run, plan, ready, workers, dealing, need, threads)
    config, coding, tracer = run.config, Coding(plan, run.scheme), Tracer(MASTER, enabled=run.config.timeline)
    flow_control = FlowControl(4 * plan.size)
    routes, weights = routes_of(layout, plan, config.topology), ServedModel(model, plan, torch.empty(plan.size))
    with _shard(
        link, coding, config, weights, rule, dealing.rate, routes, tracer,
        task=task, groups=groups, device=device, flow_control=flow_control,
    ) as shard:  # fmt: skip
        _tell_of_the_shard(shard, run.scheme)
        shard.take_up(run.resume_point.checkpoint)
        behind = _start(link, run, plan, ready, model, dealing, layout, recorded(groups))
        shard.hand_out(behind)
        clock = Clock()
        recorder = StepRecorder(
            len(workers), dealing.epochs.steps, step, dealing.epochs.epoch_offset, weighted=config.weighted_mean,
            control=lambda: link.control, links=LinkBytes(plan.groups, routes),
        )  # fmt: skip
        views = [] if config.quiet else [progress(plan.size, step, dealing.last_step, config.log_interval)]
        loggers.begin(config, step)
        notice = notice_of(run.scheme, recorder, layout, routes)
        with Fanout(RunLog(run.path), loggers, *views, notice) as observer:
            pending = PendingCheckpoints(
                run, shard, model, plan, tracer, events, workers=len(workers), rounds_go_on=rule.rounds_go_on,
                job=link.job, statistics=statistics, tell=link.inbox.post,
            )  # fmt: skip
            master = Master(
                link=link,
                config=config,
                run=run,
                workers=workers,
                spares=layout.waiting,
                servers=layout.serving,
                model=model,
                plan=plan,
                rule=rule,
                shard=shard,
                flow_control=flow_control,
                pending=pending,
                recorder=recorder,
                dealing=dealing,
                observer=observer,
                events=events,
                clock=clock,
                job_state=JobState(clock, config.stop_deadline),
                soundness=Soundness(losses(run.path / METRICS, step)),
                history=History(run.path) if config.record_history else None,
                evaluations=SessionEvaluations(link, run.path, pending, loggers.scalars) if isinstance(task, OwnLoop) else None,
                behind=tuple(rank for rank in behind if rank in layout.readers),
            )
            tell_of_the_bytes(coding, len(workers), config.topology)
            _serve(master, ready[workers[0]].waits)
    if config.timeline:
        _write_timeline(master, tracer, layout.readers)
    return ending.end(master)


def _dealing(run: RunDirectory, task: Task, rule: Rule, workers: range, examples: int) -> ExampleDealing:
    """Return the shares of `workers` in a data set of `examples` examples, at the step from which the run continues."""
    found = run.resume_point
    return ExampleDealing(
        run.config, examples, workers, run.parts(len(workers)), applied_before(rule, found.checkpoint), finished=found.step,
        own_rate=task.own_rate, steps=task.steps_per_epoch,
    )  # fmt: skip


def _shard(
    link: FrameChannel,
    coding: Coding,
    config: Config,
    weights: ServedModel,
    rule: Rule,
    rate: Callable[[Round], float],
    routes: Sequence[Route],
    tracer: Tracer,
    *,
    task: Task,
    groups: tuple[ParameterGroup, ...],
    device: torch.device | None,
    flow_control: FlowControl,
) -> Shard | DistributedShard:
    """Return the shard of all groups. If the groups are dealt among several ranks, return the handle of their shards."""
    own = [group for group, route in enumerate(routes) if MASTER in route.roots]
    if len(own) == len(routes):
        return Shard(
            coding, own, config, weights, link, rule, rate, routes, tracer,
            constraint=task.constrain if task.constrains else None, parameter_groups=groups, device=device,
            own_optimizer=task.own_optimizer, flow_control=flow_control,
        )  # fmt: skip
    shard = None
    if own:
        shard = Shard(
            coding, own, config, weights.part(own), link, rule, rate, routes, tracer,
            parameter_groups=groups, own_optimizer=task.own_optimizer, flow_control=flow_control,
        )  # fmt: skip
    estimates = config.clip_estimate == "previous"
    return DistributedShard(link, coding.plan, routes, weights, rate, config.pause_deadline, estimates=estimates, own=shard)


def _gathered(
    link: FrameChannel, run: RunDirectory, model: torch.nn.Module, layout: Layout, threads: Mapping[int, int]
) -> tuple[Mapping[int, Ready], Footprint]:
    """Return the READY messages of all ranks, and the memory that each rank needs.

    Raises PsnodeError if a rank does not answer, or if a host has less memory than its ranks need.
    """
    coding = Coding(plan_of(describe(model), run.scheme, run.config), run.scheme)
    patience = 5 * run.config.pause_deadline
    ready = gather_ready(link, run, layout.others, patience, partial(prepare, coding, run.config), threads)
    refuse_unlike_processors(run.config, {rank: ready[rank].arithmetic for rank in layout.computing}, threads)
    need = footprint(coding, run.config, len(layout.computing))
    if run.config.memory_check:  # before trial runs, which need as much memory as the run
        require_memory(need, ready, layout.serving)
    return ready, need


def _tell_of_the_shard(shard: Shard | DistributedShard, scheme: Scheme) -> None:
    for line in shard.on_host:
        _LOG.warning("the master: %s", line)
    if shard.leads_own_sgd:
        _LOG.warning(
            "the task's optimizer is SGD, which the lead of %s's downlink makes less stable: begin with --downlink-lead 0",
            scheme.name,
        )


def _start(
    link: FrameChannel,
    run: RunDirectory,
    plan: Plan,
    ready: Mapping[int, Ready],
    model: torch.nn.Module,
    dealing: ExampleDealing,
    layout: Layout,
    parameter_groups: list[dict[str, Any]],
) -> tuple[int, ...]:
    """Record the plan and send it to all ranks. If the run is resumed, also send each rank its state.

    Returns the ranks to which the weights still have to be sent.
    """
    lacking = what_to_send(ready, model, run.resume_point.checkpoint)
    job = job_digest(run.config, run.scheme, plan, run.mark)
    run.begin(plan, layout.workers, parameter_groups)
    _write_machines(run, ready)
    send_start(
        link, run, plan, ready, dealing.epochs,
        workers=layout.workers, servers=layout.serving, job=job, last_step=dealing.last_of_workers, model=model, lacking=lacking,
    )  # fmt: skip
    return tuple(among(lacking, plan.slices()))


def _serve(master: Master, waits: str) -> None:
    """Run all rounds. If an error ends the job, write the summary of the run and raise the error again.

    `waits`: the reason why forward passes wait for all weights; empty if they do not wait.
    """
    malloc.give_back()
    beat = Heartbeat(master.link, (*master.workers, *master.spares, *master.servers))
    tell_of_the_start(master.events, master.run, master.workers)
    tell_of_another_end(master.events, master.run, master.dealing)
    tell_of_another_plan(master.events, master.run.resume_point, master.plan)
    if waits:
        reason = f"forward passes wait for all weights, since {waits}"
        master.events.tell("without overlap", master.run.resume_point.step, reason=reason)
    try:
        master.serve()
    except (Exception, SystemExit) as error:
        ending.rescue(master, error)
        ending.fail(master, error)
        raise
    finally:
        beat.close()
        master.pending.close()
        if master.history is not None:
            master.history.close()


def _write_timeline(master: Master, tracer: Tracer, ranks: Iterable[int]) -> None:
    names = {MASTER: "master", **{rank: f"worker {rank}" for rank in ranks}}
    events = [*tracer.events(), *(event for events in master.traces.values() for event in events)]
    write_timeline(master.run.path, events, names)


def _write_machines(run: RunDirectory, ready: Mapping[int, Ready]) -> None:
    found = {rank: Machine(answer.host, answer.cores, answer.arithmetic) for rank, answer in ready.items()}
    backward = ready[min(ready)].backward
    ranks = {rank: asdict(machine) for rank, machine in {MASTER: Machine.here(), **found}.items()}
    write_machines(run.path, ranks, None if backward is None else dict(backward))
