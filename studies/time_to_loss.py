"""`python -m studies.time_to_loss`: minutes until a small transformer reaches a loss over a slow link; needs root.

The transformer of examples/charlm.py is trained with AdamW, a cosine schedule and clipping at 1 by psnode under each --scheme
and by PyTorch's DDP with each --hook (scripts/hook_losses.py), with two workers. The script draws batches with replacement, and
psnode draws them without. Losses and step times are measured apart. The losses after every --every steps come from processes
without a network, whose sums are the same. The time of a step is the median of --timed steps after the first ones on emulated
hosts: two for DDP, and a third one for psnode's master. The losses are those on the held-out text, with one seed. The loss to
reach is --above times that of the first hook at its end. A name followed by *N trains N times as many steps, with a schedule of
this length.
"""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psnode.bench.contest.labs import environment, on_hosts
from psnode.bench.convergence.convergence_run import ConvergenceRun
from psnode.config.declaration import option
from psnode.errors import ConfigurationError, PsnodeError
from psnode.jobs.launch import find_mpirun
from psnode.records.metrics import METRICS, read_records
from studies.harness import Column, Found, Result, Row, Study, main

ROOT = Path(__file__).resolve().parents[1]
WORKERS, SEED, UNTIMED = 2, 1, 5  # UNTIMED: steps before the timed ones
_HOOKS = ("none", "fp16", "powersgd:4", "powersgd:4*2", "polar:rate=2")
_SCHEMES = ("polar-2bit", "polar --downlink polar:rate=1", "topk", "topk*2")


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.time_to_loss`."""

    hook: tuple[str, ...] = option(_HOOKS, "Of scripts/hook_losses.py; repeat for more.", repeated=True)
    scheme: tuple[str, ...] = option(_SCHEMES, "A scheme, and flags of train; repeat for more.", repeated=True)
    rate: str = option("100mbit", "Of the links.")
    width: int = option(256, "Of the transformer.", minimum=1)
    layers: int = option(4, "Of the transformer.", minimum=1)
    batch: int = option(4, "Windows of text per worker and step.", minimum=1)
    lr: float = option(0.001, "At the first step.", above=0)
    steps: int = option(700, "Of a training.", minimum=UNTIMED + 1)
    every: int = option(25, "Steps between evaluations.", minimum=1)
    timed: int = option(25, "Steps to time.", minimum=2)
    above: float = option(1.01, "The loss to reach, relative to the first hook's at its end.", minimum=1)


@dataclass(frozen=True)
class Training:
    """A training of `options` for `steps` steps by the hook or the scheme `name`."""

    name: str
    steps: int
    options: Options

    @classmethod
    def of(cls, text: str, options: Options) -> Training:
        """Return the training that NAME or NAME*N means."""
        name, star, times = text.partition("*")
        if star and (not times.isdecimal() or int(times) == 0):
            raise ConfigurationError(f"{text}: after * comes a number of times")
        return cls(name.strip(), options.steps * int(times or 1), options)


def of_hook(training: Training) -> dict[str, Any]:
    """Return the losses by step, the seconds of a step, and the bytes of gradients per rank and step, under DDP."""
    losses = _by_processes(training)
    with tempfile.TemporaryDirectory(prefix="psnode-time-to-loss-") as folder:
        timed = _line(training, UNTIMED + training.options.timed, 0)
        _, told = on_hosts(
            timed, hosts=WORKERS, rate=training.options.rate, each=True, counters=Path(folder) / "counters", seconds=3600.0
        )
    [line] = [line for line in told.splitlines() if line.startswith("{")]
    return {"curve": losses["curve"], "seconds": json.loads(line)["seeds"][0]["seconds"], "sent": losses["sent"]}


def _by_processes(training: Training) -> dict[str, Any]:
    done = subprocess.run(
        _line(training, training.steps, training.options.every),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return dict(json.loads(done.stdout)["seeds"][0])


def _line(training: Training, steps: int, every: int) -> list[str]:
    given = training.options
    flags = {
        "--steps": steps, "--evaluate-every": every, "--batch": given.batch, "--lr": given.lr, "--width": given.width,
        "--layers": given.layers,
    }  # fmt: skip
    words = [str(word) for pair in flags.items() for word in pair]
    return [sys.executable, str(ROOT / "scripts" / "hook_losses.py"), training.name, *words, "--json"]


def of_scheme(training: Training) -> dict[str, Any]:
    """Return the losses by step, the seconds of a step, and the bytes up per worker and step, under psnode."""
    given = training.options
    task = (
        f"--task {ROOT / 'examples' / 'charlm.py'} --task-option model=transformer --task-option width={given.width} "
        f"--task-option layers={given.layers} --batch-size {given.batch} --optimizer adamw --clip-grad-norm 1 --lr {given.lr} "
        "--weight-decay 0.01 --lr-schedule cosine --threads 1 --hash-every 0 --no-tensorboard"
    )
    scheme = tuple(shlex.split(training.name))
    with tempfile.TemporaryDirectory(prefix="psnode-time-to-loss-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        common = (*shlex.split(task), "--max-steps", str(training.steps))
        run = ConvergenceRun(scheme, common, SEED, WORKERS, True, folder / "losses", given.every)
        run.complete()
        directory = folder / "times"
        command = [
            find_mpirun(), "-n", str(WORKERS + 1), sys.executable, "-m", "psnode", "train", *shlex.split(task),
            "--scheme", *scheme, "--max-steps", str(UNTIMED + given.timed), "--eval-freq", "0", "--train-dir", str(directory),
        ]  # fmt: skip
        on_hosts(command, hosts=WORKERS + 1, rate=given.rate, each=False, counters=folder / "counters", seconds=3600.0)
        seconds = [record["seconds"]["step"] for record in read_records(directory / METRICS)][UNTIMED:]
        curve = [(point.step, point.loss) for point in run.curve()]
        return {"curve": curve, "seconds": statistics.median(seconds), "sent": run.figures()["uplink_bytes"]}


def first_at_most(curve: Sequence[Sequence[float]], loss: float) -> int | None:
    """Return the first step of `curve`, which holds pairs of a step and a loss, with at most this loss; None if there is none."""
    return next((int(step) for step, found in curve if found <= loss), None)


def measure(options: Options) -> Found:
    """Return a row for each hook and scheme.

    A row has its `name`, the number of `steps`, the `curve`, the `seconds` of a step, the bytes of gradients `sent`, and the
    first step `reached` with the loss to reach, or None. Raises ConfigurationError if hosts cannot be emulated here.
    """
    trainings = [(text, Training.of(text, options), of_hook) for text in options.hook]
    trainings += [(text, Training.of(text, options), of_scheme) for text in options.scheme]
    rows = list[dict[str, Any]]()
    for text, training, found_by in trainings:
        name = f"DDP {text}" if found_by is of_hook else f"psnode {text}"
        try:
            rows.append({"name": name, "total": training.steps, **found_by(training)})
        except (PsnodeError, subprocess.CalledProcessError, ValueError) as error:
            raise ConfigurationError(f"{name}: {error}") from error
        print(f"{name}: loss {rows[-1]['curve'][-1][1]:.4f}, {1e3 * rows[-1]['seconds']:.0f} ms", file=sys.stderr, flush=True)
    target = options.above * rows[0]["curve"][-1][1]
    return Found([{**row, "reached": first_at_most(row["curve"], target)} for row in rows], {"target": target})


def minutes(row: Row) -> float | None:
    """Return the minutes to the loss, or None if it was not reached."""
    return None if row["reached"] is None else row["reached"] * row["seconds"] / 60


def _minutes(row: Row) -> str:
    return "not reached" if (found := minutes(row)) is None else f"{found:.1f}"


COLUMNS = (
    Column("", "{name}", left=True),
    Column("steps", "{total}"),
    Column("loss at the end", lambda row: f"{row['curve'][-1][1]:.4f}"),
    Column("bytes of gradients a worker and step", "{sent:,.0f}"),
    Column("ms a step", lambda row: f"{1e3 * row['seconds']:.0f}"),
    Column("steps to the loss", lambda row: "" if row["reached"] is None else str(row["reached"])),
    Column("minutes to the loss", _minutes),
)


def _head(result: Result) -> str:
    return f"Links of {result['rate']}. The loss to reach is {result['target']:.4f}."


STUDY = Study(Options, measure, COLUMNS, head=_head)


if __name__ == "__main__":
    sys.exit(main(STUDY))
