"""From the first message to the first round: gather the workers, agree on the plan, hand out the weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import xxhash

from psnode.config import Config
from psnode.config.plain_json import to_json
from psnode.config.scheme import Scheme
from psnode.errors import ConfigurationError, DeadlineExceededError, StoppedError
from psnode.exchange.routes import Layout
from psnode.exchange.shard.consistency import gradients_a_round
from psnode.master.agreement import Lacking, among, besides, hand_out, messages
from psnode.plan.groups import Plan, Tensor
from psnode.plan.rule import plan_of
from psnode.protocol.channel import FrameChannel, StopRequest
from psnode.protocol.messages import Ready, Setup, Start, plain
from psnode.protocol.wire import Frame, Kind
from psnode.records import checkpoint, layout, tensorfile
from psnode.records.directory import RunDirectory
from psnode.records.generations import Generation, shift
from psnode.records.layout import CODEBOOK, FEEDBACK, RATE
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
    """Hand the configuration down, do `meanwhile`, and wait until every worker has built its model and data.

    `threads`: by rank, where they are not those of the configuration.

    ConfigurationError if they do not agree on the model or on the number of examples, StoppedError if one of the ranks is asked
    to stop.
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
                raise StoppedError(run.resume_point.step, plain(bytes(event.body).decode("ascii", "replace")))
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


def plan_for(ready: Ready, scheme: Scheme, config: Config) -> Plan:
    """The plan by rule, in the order in which worker 1 saw gradients finish."""
    shapes = {name: tuple(shape) for name, shape in ready.tensors}
    order = ready.order if ready.order is not None else list(shapes)
    return plan_of([Tensor(name, shapes[name]) for name in order], scheme, config)


def job_digest(config: Config, scheme: Scheme, plan: Plan, mark: str) -> int:
    """Digest that every frame of this job carries: configuration, scheme, plan and this start of it."""
    text = to_json([config.digest(), scheme.to_dict(), plan.to_dict(), mark], sort_keys=True)
    return max(1, xxhash.xxh3_64_intdigest(text.encode()))


class Epochs(NamedTuple):
    """Number of steps of an epoch, and the shifts of psnode.records.generations: for schedules, and for the data of a worker."""

    steps: int
    shift: int
    sample_shift: int


def epochs_of(config: Config, parts: Sequence[Generation], examples: int) -> Epochs:
    """Epochs of a run whose last part begins now."""

    def taken(workers: int) -> int:
        return gradients_a_round(config, workers) * config.batch_size * config.batches_per_step

    def sampled(workers: int) -> int:
        return workers * config.batch_size * config.batches_per_step

    return Epochs(examples // taken(parts[-1].workers), shift(parts, examples, taken), shift(parts, examples, sampled))


def send_start(
    link: FrameChannel,
    run: RunDirectory,
    plan: Plan,
    ready: Mapping[int, Ready],
    epochs: Epochs,
    *,
    workers: int,
    job: int,
    last_step: int,
    model: torch.nn.Module | None = None,
    lacking: Lacking | None = None,
) -> None:
    """Tell every worker the plan and where to start; its state goes along where it cannot read it itself.

    So do the tensors of `model`, rank 0's, that are `lacking`, but for the weights of the plan.

    A worker of which the checkpoint holds nothing, because it was gone then, gets the means of the others' buffers and places;
    where another number of workers wrote it, each gets the mean of all their memories. Ranks above `workers`, spares, have none.
    """
    found, first = run.resume_point.checkpoint, ready[Layout(workers).first]
    dealt = resharded(found, first) if found and run.resume_point.resharded(workers) else None
    follow: dict[int, bytes | None] = {}
    for rank, answer in ready.items():
        if found is None:
            break
        if rank <= workers:
            follow[rank] = dealt or _state(found, rank, answer)
        else:  # a spare, whatever place it had when the checkpoint was made
            follow[rank] = tensorfile.dump(_mean_buffers(found, answer))
    rest = {} if lacking is None else besides(lacking, plan.slices())
    frames = {} if model is None else messages(rest, model)
    for rank in ready:
        start = Start(
            plan=plan.to_dict(),
            job=job,
            step=run.resume_point.step,
            last_step=last_step,
            steps_per_epoch=epochs.steps,
            shift=epochs.shift,
            sample_shift=epochs.sample_shift,
            restore=found.path.name if found else None,
            state_follows=follow.get(rank) is not None,
            tensors=frames.get(rank, 0),
            weights_follow=lacking is None or rank in among(lacking, plan.slices()),
            late=first.late,
            waits=bool(first.waits),
        )
        link.send(rank, Kind.PLAN, start.to_bytes())
    link.job = job
    if model is not None:
        hand_out(link, rest, model)
    for rank, state in follow.items():
        if state is not None:
            link.send(rank, Kind.STATE, state)


def resharded(found: checkpoint.Checkpoint, answer: Ready) -> bytes:
    """State for every worker if another number of them wrote the checkpoint: the means of memories and buffers.

    The weights are owed the mean over the workers of their residuals, and that mean is kept, in units of weights
    where memories are. A memory of bytes (a codebook) is the first worker's.
    """
    names = [name for name in found.facts["files"] if checkpoint.is_worker_file(name)]
    sums: dict[str, torch.Tensor] = {}
    for name in names:
        for key, value in _owed(layout.state_of(found, name)).items():
            if key.startswith(FEEDBACK) and value.is_floating_point():
                sums[key] = value.double() + sums.get(key, 0.0)
            elif key.startswith(FEEDBACK):
                sums.setdefault(key, value)
    means = {key: value / len(names) if value.is_floating_point() else value for key, value in sums.items()}
    means = {key: value.float() if value.is_floating_point() else value for key, value in _owed(means, back=True).items()}
    return tensorfile.dump({**means, **_mean_buffers(found, answer), **_mean_place(found)})


def _owed(memories: Mapping[str, torch.Tensor], *, back: bool = False) -> dict[str, torch.Tensor]:
    """Memories of tensors that have a rate (psnode.records.layout) times that rate, in float64; with `back` divided by it."""
    found = dict(memories)
    for key, value in memories.items():
        memory, _, tensor = key.removeprefix(FEEDBACK).partition("/")
        rate = memories.get(f"{FEEDBACK}{RATE}/{tensor}")
        if key.startswith(FEEDBACK) and memory not in (RATE, CODEBOOK) and rate is not None:
            factor = torch.where(rate > 0, rate.double(), 1.0)
            found[key] = value.double() / factor if back else value.double() * factor
    return found


def _state(found: checkpoint.Checkpoint, rank: int, answer: Ready) -> bytes | None:
    """State that worker `rank` resumes from; None if it reads that itself, which it does by the names of this layout."""
    name = checkpoint.worker_file(rank)
    if not found.has(name):
        return tensorfile.dump({**_mean_buffers(found, answer), **_mean_place(found)})
    if found.layout < checkpoint.LAYOUT or found.renaming is not str:
        return tensorfile.dump(layout.state_of(found, name))
    return None if answer.shared_directory else found.read(name)


def _mean_place(found: checkpoint.Checkpoint) -> dict[str, torch.Tensor]:
    """Mean place of the workers in their shares; empty where the checkpoint does not say it."""
    parts = [found.tensors(name) for name in found.facts["files"] if checkpoint.is_worker_file(name)]
    places = [part[checkpoint.PLACE] for part in parts if checkpoint.PLACE in part]
    alike = [int(place[0]) for place in places if place[1] == places[0][1]]  # dealt among as many
    return {checkpoint.PLACE: torch.tensor([sum(alike) // len(alike), int(places[0][1])])} if alike else {}


def _mean_buffers(found: checkpoint.Checkpoint, answer: Ready) -> dict[str, torch.Tensor]:
    parameters = {tensor for tensor, _ in answer.tensors}
    return {f"buffer/{key}": value for key, value in found.tensors(checkpoint.MODEL).items() if key not in parameters}
