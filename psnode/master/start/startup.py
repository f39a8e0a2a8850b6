"""The start of a job from the first message to the first round: gather the workers, agree on the plan, hand out the weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torch
import xxhash

from psnode.config import Config
from psnode.config.amounts import amount, counted
from psnode.config.memory import free_memory
from psnode.config.plain_json import to_json
from psnode.config.scheme import Scheme
from psnode.errors import ConfigurationError, DeadlineExceededError, StoppedError
from psnode.exchange.footprint import Footprint
from psnode.exchange.machine import Machine
from psnode.master.example_dealing import Epochs
from psnode.master.job_state import stop_reason_of
from psnode.master.start.agreement import Lacking, among, besides, hand_out, messages
from psnode.plans.groups import Plan, Tensor
from psnode.plans.roles import Layout
from psnode.plans.rule import plan_of
from psnode.protocol.channel import FrameChannel, StopRequest
from psnode.protocol.messages import Ready, Setup, Start
from psnode.protocol.wire import Frame, Kind
from psnode.records.directory import RunDirectory
from psnode.records.redistribution import resharded, spare_state, worker_state
from psnode.task import Task

MakeTask = Callable[[Config], Task]


def gather_ready(
    link: FrameChannel,
    run: RunDirectory,
    workers: Sequence[int],
    patience: float,
    meanwhile: Callable[[], None] = lambda: None,
    threads: Mapping[int, int] | None = None,
) -> dict[int, Ready]:
    """Send the configuration to `workers`, run `meanwhile`, and return the READY message of every worker.

    A worker sends READY when it has built its model and data. `patience`: the longest wait for all workers, in seconds.
    `threads`: by rank, the number of threads, for ranks that do not use the configured number. Raises ConfigurationError if
    the workers disagree on the model or the number of examples, StoppedError if a rank was asked to stop, and
    DeadlineExceededError if `patience` has passed.
    """
    setup = Setup(run.config.to_dict(), run.scheme.to_dict(), str(run.path), run.mark, max(1, run.config.threads))
    counts = {rank: (threads or {}).get(rank, setup.threads) for rank in workers}
    for count in dict.fromkeys(counts.values()):
        alike = [rank for rank in workers if counts[rank] == count]
        link.send(alike, Kind.CONFIG, replace(setup, threads=count).to_bytes())
    meanwhile()
    found: dict[int, Ready] = {}
    end = time.monotonic() + patience
    while len(found) < len(workers):
        try:
            event = link.next(end - time.monotonic())
        except DeadlineExceededError:
            missing = ", ".join(str(rank) for rank in workers if rank not in found)
            raise DeadlineExceededError(
                f"workers {missing} did not build model and data within {patience:g} s: "
                "raise --pause-deadline if they are only slow"
            ) from None
        match event:
            case Frame(kind=Kind.READY):
                found[event.sender] = Ready.from_bytes(event.body, event.sender)
            case Frame(kind=Kind.STOP_REQUEST):
                raise StoppedError(run.resume_point.step, stop_reason_of(event))
            case StopRequest():
                raise StoppedError(run.resume_point.step, event.reason)
    first = found[workers[0]]
    for rank, ready in found.items():
        if ready.tensors != first.tensors or ready.examples != first.examples:
            raise ConfigurationError(
                f"rank {rank} has another model or another amount of data than rank {workers[0]}: "
                "every host needs the same files and package versions"
            )
    return found


def raise_if_stopped(link: FrameChannel, run: RunDirectory) -> None:
    """Raise StoppedError if a rank was asked to stop. All other messages stay in the inbox."""
    events = []
    while (event := link.inbox.poll()) is not None:
        events.append(event)
    link.inbox.put_back(events)
    for event in events:
        if isinstance(event, StopRequest):
            raise StoppedError(run.resume_point.step, event.reason)
        if isinstance(event, Frame) and event.kind is Kind.STOP_REQUEST:
            raise StoppedError(run.resume_point.step, stop_reason_of(event))


def require_memory(need: Footprint, ready: Mapping[int, Ready], servers: Collection[int] = ()) -> None:
    """Raise ConfigurationError that names the first host with too little free memory.

    `ready`: the READY message of each rank except the master. Only the memory of the exchange is counted
    (psnode.exchange.footprint), not activations, so a refused job could not have run. One vector of weights per rank is not
    counted, since the model that holds this vector is already in memory.
    """
    here = Machine.here().host
    free: dict[str, int | None] = {here: free_memory()}
    takes: dict[str, float] = {here: need.master_bytes - need.vector}
    ranks: dict[str, int] = {here: 1}
    for rank, answer in ready.items():
        host = answer.host
        known = [each for each in (free.get(host), answer.free) if each is not None]
        free[host] = min(known, default=None)
        takes[host] = takes.get(host, 0.0) + (need.server_bytes if rank in servers else need.worker_bytes) - need.vector
        ranks[host] = ranks.get(host, 0) + 1
    for host, left in free.items():
        if left is not None and takes[host] > left:
            raise ConfigurationError(
                f"{counted(ranks[host], 'rank')} on {host} will need {amount(takes[host])} of memory beside their activations, "
                f"and {amount(left)} are left there: start fewer ranks on it, or choose a scheme or an optimizer that keeps less "
                "(psnode train --dry-run lists it); --no-memory-check begins all the same"
            )


def plan_for(ready: Ready, scheme: Scheme, config: Config) -> Plan:
    """Return the plan that the rule makes, with tensors in the order in which their gradients were ready on worker 1."""
    shapes = {name: tuple(shape) for name, shape in ready.tensors}
    order = ready.order if ready.order is not None else list(shapes)
    return plan_of([Tensor(name, shapes[name]) for name in order], scheme, config)


def job_digest(config: Config, scheme: Scheme, plan: Plan, mark: str) -> int:
    """Return the digest of the configuration, scheme, plan and `mark` of the job. Every frame of the job carries this digest."""
    text = to_json([config.digest(), scheme.to_dict(), plan.to_dict(), mark], sort_keys=True)
    return max(1, xxhash.xxh3_64_intdigest(text.encode()))


def send_start(
    link: FrameChannel,
    run: RunDirectory,
    plan: Plan,
    ready: Mapping[int, Ready],
    epochs: Epochs,
    *,
    workers: int,
    servers: Collection[int] = (),
    job: int,
    last_step: int,
    model: torch.nn.Module | None = None,
    lacking: Lacking | None = None,
) -> None:
    """Send every rank the plan and the step from which to start, and the state and tensors that it lacks.

    If a rank cannot read the checkpoint itself, its state is sent in a STATE frame. `lacking`: by rank, the tensors of rank
    0's `model` to send; the trained weights are sent separately.

    A worker that was absent when the checkpoint was written gets the mean of the other workers' buffers, and the mean of
    their positions in the data. If another number of workers wrote the checkpoint, each worker gets the mean of all
    residuals. Ranks above `workers` are spares, which get no residuals, or `servers`, whose state is sent to their shards.
    """
    found, first = run.resume_point.checkpoint, ready[Layout(workers).first]
    dealt = resharded(found, first) if found and run.resume_point.resharded(workers) else None
    follow: dict[int, bytes | None] = {}
    for rank, answer in ready.items():
        if found is None:
            break
        if rank in servers:
            continue
        if rank <= workers:
            follow[rank] = dealt or worker_state(found, rank, answer)
        else:
            follow[rank] = spare_state(found, answer)
    rest = {} if lacking is None else besides(lacking, plan.slices())
    frames = {} if model is None else messages(rest, model)
    for rank in ready:
        start = Start(
            plan=plan.to_dict(),
            job=job,
            step=run.resume_point.step,
            last_step=last_step,
            steps_per_epoch=epochs.steps,
            shift=epochs.epoch_offset,
            sample_shift=epochs.sample_offset,
            restore=found.path.name if found else None,
            state_follows=follow.get(rank) is not None,
            tensors=frames.get(rank, 0),
            weights_follow=lacking is None or rank in among(lacking, plan.slices()),
            late=first.late,
            waits=bool(first.waits),
            scheme=run.scheme.to_dict(),
        )
        link.send(rank, Kind.PLAN, start.to_bytes())
    link.job = job
    if model is not None:
        hand_out(link, rest, model)
    for rank, state in follow.items():
        if state is not None:
            link.send(rank, Kind.STATE, state)
