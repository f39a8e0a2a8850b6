"""One run of a contender on emulated hosts, and its results."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from psnode.bench.contest.contenders import Contender, SharedSettings
from psnode.bench.contest.labs import on_hosts
from psnode.bench.contest.step_marks import HostTraffic, Mark, read_marks
from psnode.errors import TransportError
from psnode.exchange.routes.topologies import is_central
from psnode.records.directory import saved_config
from psnode.records.metrics import METRICS, read_records


class Point(NamedTuple):
    """State after `step` steps: seconds of training without checkpoints, bytes sent by all hosts, and the test accuracy."""

    step: int
    seconds: float
    nbytes: int
    top1: float


@dataclass(frozen=True)
class ContenderRun:
    """Figures of one run. Bytes are per step, counted by the interfaces, with packet headers.

    steps             seconds of each measured step, the mean over the workers
    sent, received    bytes of a worker, the mean over the workers
    sent_by_all       bytes of all hosts together
    booked            psnode's own count of bytes / payload bytes that the interfaces counted, nearly 1; None without psnode
    goodput           Mbit/s of the links before the run
    curve             test accuracy at the checkpoints; empty if not evaluated
    """

    steps: tuple[float, ...]
    sent: float
    received: float
    sent_by_all: float
    booked: float | None
    goodput: tuple[float, ...]
    curve: tuple[Point, ...]


def run_trial(
    contender: Contender, ground: SharedSettings, *, rate: str, warmup: int, folder: Path, seconds: float
) -> ContenderRun:
    """Run `contender` in the empty `folder`; the first `warmup` steps are not measured.

    Raises the errors of `on_hosts`, and TransportError if a worker did not take all steps.
    """
    (folder / "marks").mkdir(parents=True)
    counters, _ = on_hosts(
        contender.command(ground, folder), hosts=contender.hosts(ground.workers), rate=rate, each=not contender.label.star,
        counters=folder / "counters.json", seconds=seconds,
    )  # fmt: skip
    marks = read_marks(folder / "marks", ground.steps)
    if len(marks) != ground.workers or any(len(each) != ground.steps for each in marks):
        raise TransportError(f"{contender.label.name}: {len(marks)} workers took {[len(each) for each in marks]} steps")
    durations = step_durations(marks)
    star = contender.label.star
    central = star and is_central(saved_config(folder / "run").topology)
    accurate = ground.evaluate_every and contender.label.kind in ("psnode", "ddp", "hook")
    traffic = [HostTraffic.between(each[warmup], each[-1]) for each in marks]
    n_steps = ground.steps - 1 - warmup
    return ContenderRun(
        steps=tuple(durations[warmup:]),
        sent=statistics.fmean(each.sent for each in traffic) / n_steps,
        received=statistics.fmean(each.received for each in traffic) / n_steps,
        sent_by_all=sent_by_all(traffic, central) / n_steps,
        booked=booked(folder / "run" / METRICS, traffic, range(warmup + 1, ground.steps), central) if star else None,
        goodput=tuple(counters["goodput_mbit"]),
        curve=curve(contender, ground, folder, marks, durations, central) if accurate else (),
    )


def step_durations(marks: Sequence[Sequence[Mark]]) -> list[float]:
    """Return the duration of every step in seconds, a mean over the workers.

    The last step is left out, since no mark shows its end.
    """
    each = ([after.seconds - before.seconds for before, after in pairwise(worker)] for worker in marks)
    return [statistics.fmean(step) for step in zip(*each, strict=True)]


def sent_by_all(traffic: Sequence[HostTraffic], central: bool) -> int:
    """Return the bytes sent by all hosts. `traffic` has an entry for each worker, but none for the master.

    If the master is the root of all groups (`central`), all that workers receive is sent by the master, so the received bytes
    are added. Otherwise almost all bytes are sent by workers.
    """
    return sum(each.sent + (each.received if central else 0) for each in traffic)


def booked(metrics: Path, traffic: Sequence[HostTraffic], steps: range, central: bool) -> float:
    """Return the ratio of psnode's own count of bytes in `steps` to the payload bytes that its workers' interfaces counted.

    If the master is not the root of all groups, both counts contain only the bytes that workers send.
    """
    names = ["uplink_bytes", "downlink_bytes", "uplink_control_bytes", *(["downlink_control_bytes"] if central else [])]
    own = sum(record[name] for record in read_records(metrics) if record["step"] in steps for name in names)
    return float(own / sum(each.sent_payload + (each.received_payload if central else 0) for each in traffic))


def curve(
    contender: Contender,
    ground: SharedSettings,
    folder: Path,
    marks: Sequence[Sequence[Mark]],
    durations: Sequence[float],
    central: bool,
) -> tuple[Point, ...]:
    """Return a point of the accuracy curve for every checkpoint.

    A step that wrote a checkpoint counts with the median duration of all steps, and so does the last step.
    """
    typical = statistics.median(durations)
    clock = [0.0]
    for step in range(1, ground.steps + 1):
        plain = step < ground.steps and step % ground.evaluate_every
        clock.append(clock[-1] + (durations[step - 1] if plain else typical))
    points = []
    for step, top1 in accuracies(ground, contender.checkpoints(folder)).items():
        last = min(step, ground.steps - 1)
        traffic = [HostTraffic.between(each[0], each[last]) for each in marks]
        points.append(Point(step, clock[step], sent_by_all(traffic, central), top1))
    return tuple(points)


def accuracies(ground: SharedSettings, checkpoints: dict[int, Path]) -> dict[int, float]:
    """Return the share of test examples that each checkpoint classifies correctly, by step."""
    import torch

    from psnode.evaluator import evaluate
    from psnode.records.tensorfile import parse
    from psnode.tasks.classification import Classification

    task = Classification(ground.network, ground.dataset, ground.data_dir, seed=ground.seed, options=dict(ground.options))
    data = task.eval_data()
    model = task.model()
    found = {}
    for step, path in checkpoints.items():
        model.load_state_dict(parse(path.read_bytes(), str(path)))
        result = evaluate(task, model, data, step, 1000, torch.device("cpu"))
        found[step] = float(result.top1 or 0.0)
    return found
