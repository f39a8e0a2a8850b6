"""The parameter server: rank 0."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace

import torch

from psnode.config import Config
from psnode.config.schemes import Scheme
from psnode.errors import CheckpointError, PsnodeError, StoppedError
from psnode.exchange.machine import Machine
from psnode.exchange.shard.downlink import Downlink
from psnode.exchange.shard.executor import GroupExecutor, lane_count
from psnode.exchange.shard.optimizer import Constraint, Parameters
from psnode.exchange.shard.reduction import Reduction
from psnode.exchange.stopwatch import Stopwatch
from psnode.master import replanning
from psnode.master.agreement import among, require_one_version, what_to_send
from psnode.master.applied import applied_before
from psnode.master.autotune import group_bytes_for
from psnode.master.checkpointing import PendingCheckpoints
from psnode.master.events import Events
from psnode.master.heartbeat import Heartbeat
from psnode.master.job_state import JobState
from psnode.master.loop import Master
from psnode.master.progress import Fanout, progress
from psnode.master.recorder import StepRecorder
from psnode.master.sharding import Sharding
from psnode.master.soundness import Soundness
from psnode.master.star import DownlinkNotice
from psnode.master.startup import gather_ready, job_digest, plan_for, restore, send_start
from psnode.plan.groups import Plan
from psnode.protocol.channel import FrameChannel, RemoteFailureError
from psnode.protocol.messages import Failure, Ready
from psnode.protocol.wire import Kind
from psnode.records.checkpoint import LATEST, Checkpoint, complete, step_of, worker_file
from psnode.records.directory import RunDirectory, claim
from psnode.records.history import History
from psnode.records.machines import write_machines
from psnode.records.metrics import METRICS, RunLog, Summary, compression_ratio, losses, peak_memory, totals
from psnode.records.retention import why_unsound
from psnode.records.timeline import Tracer, write_timeline
from psnode.task import Task
from psnode.tasks import inventory
from psnode.transport.barrier import gather_hello
from psnode.transport.base import Transport
from psnode.transport.clock import Clock

_REASONS = {3: "quorum", 4: "diverged", 75: "signal", 130: "interrupted"}


def lead(transport: Transport, config: Config, make_task: Callable[[Config], Task], hello: bytes) -> int:
    """Run a whole job as its master; returns the exit code.

    Raises PsnodeError when the job cannot start or go on; the workers have been told then.
    """
    link = FrameChannel(transport)
    ranks = range(1, transport.size)
    greetings = gather_hello(transport, hello, config.start_deadline)
    try:
        require_one_version(greetings)
        return _lead(link, config, make_task, ranks)
    except Exception as error:
        if isinstance(error, RemoteFailureError):
            error.show()
        told = _explained(error, config)
        link.fail(ranks, told)
        if told is error:
            raise
        raise told from error


def _explained(error: Exception, config: Config) -> Exception:
    """A disk that takes nothing more is no bug."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return error
    where = error.filename or config.directory
    return CheckpointError(f"{where} cannot be written ({error.strerror}): make room and go on with --resume")


def _lead(link: FrameChannel, config: Config, make_task: Callable[[Config], Task], ranks: range) -> int:
    workers = ranks[: max(0, len(ranks) - config.spares)]
    config.check_workers(len(workers))
    task = make_task(config)
    torch.manual_seed(config.seed)
    model = task.model()
    statistics = task.statistics(model)
    inventory.check(model, statistics)
    with claim(config) as run:
        try:
            constraint = task.constrain if task.constrains else None
            return _run(link, run.config, run.scheme, model, statistics, run, workers, ranks[len(workers) :], constraint)
        except StoppedError as error:  # before it began: whoever watches the directory learns why nothing comes
            _summary(run, error.step, _REASONS[error.exit_code], error.exit_code, 0).write(run.path)
            raise


def _run(
    link: FrameChannel,
    config: Config,
    scheme: Scheme,
    model: torch.nn.Module,
    statistics: dict[str, str],
    run: RunDirectory,
    workers: range,
    spares: range,
    constraint: Constraint | None,
) -> int:
    ranks = (*workers, *spares)
    ready = gather_ready(link, run, ranks, 5 * config.pause_deadline)
    applied = applied_before(config, run.resume_point.checkpoint)
    sharding = Sharding(
        config, ready[workers[0]].examples, workers, run.parts(len(workers)), applied, version=run.resume_point.step
    )
    epochs, last_step = sharding.epochs, sharding.last_step
    events = Events(run.path)
    if run.resume_point.plan is None:
        size = group_bytes_for(
            link, config, scheme, model, {rank: ready[rank] for rank in workers}, steps=last_step, epoch=epochs.steps,
            tell=lambda reason: events.tell("calibrated", 0, reason=reason),
        )  # fmt: skip
        config = replace(config, group_bytes=size)
        run = replace(run, config=config)
    plan = run.resume_point.plan or plan_for(ready[workers[0]], scheme, config)
    replanning.check(run.resume_point, plan)
    parameters = Parameters(model, plan, config, scheme.momentum, scheme.gathering)
    downlink = Downlink(scheme.downlink, parameters.weights.numpy(), plan, link, ranks, seed=config.seed)
    restore(run, parameters, downlink)
    lacking = what_to_send(ready, model, run.resume_point.checkpoint)
    job = job_digest(config, scheme, plan, run.mark)
    run.begin(plan, len(workers))
    _write_machines(run, ready)
    send_start(
        link, run, plan, ready, epochs,
        workers=len(workers), job=job, last_step=sharding.last_of_workers, model=model, lacking=lacking,
    )  # fmt: skip
    clock = Clock()
    watch, tracer = Stopwatch(), Tracer(0, enabled=config.timeline)
    on = config.consistency != "bsp"
    pending = PendingCheckpoints(
        run, parameters, downlink, tracer, events, workers=len(workers), rounds_go_on=on, job=job, statistics=statistics
    )
    view = progress(plan.size, run.resume_point.step, last_step, config.log_interval)
    recorder = StepRecorder(len(workers), epochs.steps, run.resume_point.step, epochs.shift)
    notice = DownlinkNotice(scheme, recorder, len(workers))
    log = RunLog(run.path, tensorboard=config.tensorboard is not False)
    with _lanes(link, plan) as lanes, Fanout(log, view, notice) as observer:
        master = Master(
            link=link,
            config=config,
            plan=plan,
            run=run,
            workers=workers,
            spares=spares,
            parameters=parameters,
            downlink=downlink,
            pending=pending,
            reduction=Reduction(
                plan,
                scheme,
                parameters,
                downlink,
                lanes,
                watch,
                tracer,
                seed=config.seed,
                constraint=constraint,
                norm_cap=config.norm_cap or None,
            ),
            watch=watch,
            recorder=recorder,
            sharding=sharding,
            observer=observer,
            tracer=tracer,
            events=events,
            clock=clock,
            job_state=JobState(clock, config.stop_deadline),
            soundness=Soundness(losses(run.path / METRICS, run.resume_point.step)),
            history=History(run.path) if config.record_history else None,
            behind=tuple(among(lacking, plan.slices())),
        )
        master.reduction.warm_up()
        beat = Heartbeat(link, ranks)
        _tell_of_the_start(master.events, run, workers)
        replanning.tell(master.events, run.resume_point, plan)
        if waits := ready[workers[0]].waits:
            master.events.tell(
                "without overlap", run.resume_point.step, reason=f"forward passes wait for all weights, since {waits}"
            )
        try:
            master.serve()
        except Exception as error:
            code = error.exit_code if isinstance(error, PsnodeError) else 1
            with contextlib.suppress(OSError):  # a full disk, say: then the first error is the one to tell
                _summarise(master, run, _REASONS.get(code, "failed"), code)
            _tell_of_the_end(master)
            raise
        finally:
            beat.close()
            if master.history is not None:
                master.history.close()
    if config.timeline:
        names = {0: "master", **{rank: f"worker {rank}" for rank in ranks}}
        write_timeline(run.path, [*tracer.events(), *(event for events in master.traces.values() for event in events)], names)
    code = _exit_code(master)
    if code and (failure := master.job_state.failure) is not None:
        _summarise(master, run, "failed", failure.exit_code)
        _tell_of_the_end(master)
        saved = f"the checkpoint of step {master.version} is written: once the cause is mended go on with --resume"
        raise RemoteFailureError(0, Failure(f"{failure}: {saved}", failure.exit_code))
    quorum = code == 75 and master.job_state.stop_reason == "quorum"
    _summarise(master, run, "quorum" if quorum else _REASONS.get(code, "completed"), code)
    _tell_of_the_end(master)
    link.send(ranks, Kind.END)
    return code


def _write_machines(run: RunDirectory, ready: Mapping[int, Ready]) -> None:
    found = {rank: Machine(answer.host, answer.cores, answer.arithmetic) for rank, answer in ready.items()}
    backward = ready[min(ready)].backward
    ranks = {rank: asdict(machine) for rank, machine in {0: Machine.here(), **found}.items()}
    write_machines(run.path, ranks, None if backward is None else dict(backward))


def _tell_of_the_start(events: Events, run: RunDirectory, workers: range) -> None:
    """Tell the user of an unexpected learning rate, and of state that a resumed run does not continue."""
    for note in run.notes:
        events.tell("learning rate", 0, reason=note)
    found = run.resume_point.checkpoint
    if found is not None:
        _tell_of_soundness(events, run, found)
    if found is not None and run.resume_point.resharded(len(workers)):
        events.tell(
            "resharded",
            found.step,
            None,
            f"{found.facts['workers']} workers wrote the checkpoint, {len(workers)} go on: the rest of the epoch is dealt "
            "among them, and each begins with the mean of all memories",
        )
        return
    for rank in workers:
        if found is not None and not found.has(worker_file(rank)):
            events.tell("begins anew", found.step, rank, "the checkpoint holds no memories of it")


def _tell_of_soundness(events: Events, run: RunDirectory, found: Checkpoint) -> None:
    """An unsound checkpoint that a resumed run goes on from, and newer ones that it passes over."""
    if reason := why_unsound(found.path):
        events.tell("unsound", found.step, None, f"the run goes on from this checkpoint all the same: {reason}")
    for path in complete(run.path):
        if step_of(path) > found.step and (reason := why_unsound(path)):
            remedy = f"to go on from it after all stop, and write {path.name} into {path.with_name(LATEST)}"
            events.tell("passed over", found.step, None, f"the newer {path.name} is unsound: {reason}; {remedy}")


def _tell_of_the_end(master: Master) -> None:
    """The last line of a synchronous run some of whose rounds were not."""
    if master.partial and master.config.consistency == "bsp":
        rounds, everybody = master.version - master.run.resume_point.step, len(master.workers)
        print(
            f"psnode: {master.partial} of {rounds} rounds were not of all {everybody} workers: "
            "`contributing` in metrics.jsonl says of how many, events.jsonl why",
            file=sys.stderr,
            flush=True,
        )


def _exit_code(master: Master) -> int:
    if master.version >= master.sharding.last_step or master.job_state.stop_reason is None:
        return 0
    return 130 if master.job_state.stop_reason == "SIGINT" else 75


def _summarise(master: Master, run: RunDirectory, reason: str, code: int) -> None:
    found = _summary(run, master.version, reason, code, master.plan.size)
    replace(found, final_loss=master.final_loss, model_hash=master.parameters.digest()).write(run.path)


def _summary(run: RunDirectory, steps: int, reason: str, code: int, coordinates: int) -> Summary:
    """All but what only a master that has begun knows."""
    sums = totals(run.path / METRICS, steps)
    return Summary(
        steps=steps,
        seconds=sums.seconds,
        final_loss=None,
        uplink_bytes=sums.uplink_bytes,
        downlink_bytes=sums.downlink_bytes,
        compression_ratio=compression_ratio(coordinates, sums.worker_steps, sums.uplink_bytes + sums.downlink_bytes),
        model_hash="",
        stop_reason=reason,
        exit_code=code,
        coordinates=coordinates,
        peak_memory_bytes=peak_memory(),
    )


@contextlib.contextmanager
def _lanes(link: FrameChannel, plan: Plan) -> Iterator[GroupExecutor]:
    lanes = GroupExecutor(link.inbox, lane_count(len(plan.groups)))
    try:
        yield lanes
    finally:
        lanes.close()
