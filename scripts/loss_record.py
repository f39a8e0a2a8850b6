"""The record of losses, the source of docs/choosing.md and of the notes of `psnode train`.

    scripts/loss_record.py run OUT --mnist DIR --cifar10 DIR    train the missing runs and add each to the record
    scripts/loss_record.py list                                 print the cells, with the number of runs in each

A cell is a model, an optimizer and a number of steps. In each cell, the scheme dense is trained first, at three learning rates
with one seed. While the best rate is the lowest or the highest one tried, a further rate is tried. All other schemes use
dense's best rate, except schemes without momentum under SGD, which try rates of their own. Every run is a run of `psnode bench
convergence`: workers are threads, and the sums equal those of MPI. Runs write into OUT/CELL. Each run that ends adds a line to
psnode/config/loss_record.json. A run that is in the record is not trained again, whichever machine it was measured on.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psnode.bench.convergence.convergence_run import ConvergenceRun
from psnode.bench.hardware import hardware
from psnode.config.plain_json import to_json
from psnode.errors import DivergedError
from psnode.records.directory import saved_run

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "psnode" / "config" / "loss_record.json"
WORKERS = 2
_ADAMW = "--optimizer adamw --clip-grad-norm 1"
_CHARACTERS = "--task examples/charlm.py --batch-size 8"
_ADAM_RATES, _SGD_RATES, _PLAIN_RATES = ("0.001", "0.003", "0.01"), ("0.01", "0.03", "0.1"), ("0.1", "0.3", "1")

# runs in addition to dense: a scheme and flags; runs in PLAIN have no momentum, and find their own rate under SGD
SCHEMES = (
    "polar-2bit",
    "topk",
    "polar-1bit",
    "polar --downlink polar:rate=1",
    "dense --codec qsgd:levels=127 --downlink qsgd:levels=127",
    "qsgd",
    "topk:ratio=0.05 --downlink topk:ratio=0.05",
    "efsignsgd",
)
PLAIN = {"topk", "topk:ratio=0.05 --downlink topk:ratio=0.05", "efsignsgd"}


@dataclass(frozen=True)
class Cell:
    """A model, an optimizer and a number of steps.

    `task`: flags of train, in which {NAME} stands for a folder given on the command line.
    """

    model: str
    task: str
    adam: bool
    steps: int

    @property
    def name(self) -> str:
        return f"{self.model}/{'adamw' if self.adam else 'sgd'}/{self.steps}"

    def common(self, folders: dict[str, str]) -> str:
        """Return the flags of all runs in this cell."""
        steps = f"--max-steps {self.steps} --lr-schedule cosine --threads 1 --hash-every 0 --no-tensorboard"
        return f"{self.task.format(**folders)} {_ADAMW if self.adam else '--optimizer sgd'} {steps}"


_TASKS = {
    "gpt-small": (f"{_CHARACTERS} --task-option model=transformer --task-option width=96", 700, 400),
    "lenet": ("--network LeNet --dataset mnist --data-dir {mnist} --batch-size 16", 400, 400),
    "vit": ("--task examples/vit.py --task-option data={mnist} --batch-size 16", 400, 400),
    "lstm": (f"{_CHARACTERS} --task-option width=128", 400, 400),
    "resnet-20": ("--network resnet-20 --dataset imagefolder --data-dir {cifar10} --batch-size 8", 300, 300),
    "lora": ("--task examples/lora.py --task-option base={base} --task-option rank=16 --batch-size 8", 300, 300),
    "gpt-3m": (
        "--task examples/charlm.py --batch-size 4 --task-option model=transformer --task-option width=256 --task-option layers=4",
        700,
        400,
    ),
}
_LONG = Cell("gpt-small", _TASKS["gpt-small"][0], True, 2000)
CELLS = (
    *(Cell(model, task, adam, steps[1 - adam]) for adam in (True, False) for model, (task, *steps) in _TASKS.items()),
    _LONG,
)


def load() -> list[dict[str, Any]]:
    """Return the entries of the loss record."""
    return list(json.loads(RECORD.read_bytes())) if RECORD.exists() else []


def store(entries: Sequence[dict[str, Any]]) -> None:
    """Write `entries` as the loss record, one entry per line."""
    ordered = sorted(
        entries, key=lambda entry: (entry["cell"], entry["run"] != "dense", entry["run"], entry["lr"], entry["seed"])
    )
    RECORD.write_text("[\n" + ",\n".join(to_json(entry) for entry in ordered) + "\n]\n")


class Recorder:
    """Trainer of those runs of `cell` that are missing in the record."""

    def __init__(self, cell: Cell, output: Path, folders: dict[str, str]) -> None:
        self.cell, self._output, self._folders = cell, output / cell.name.replace("/", "-"), folders
        self._diverged: set[tuple[str, str]] = set()  # the runs and rates that diverged

    def found(self, run: str, seed: int, lr: str | None = None) -> list[dict[str, Any]]:
        """Return the record's entries of the run `run` with this seed in the cell; if `lr` is given, only those at this rate."""
        return [
            entry
            for entry in load()
            if entry["cell"] == self.cell.name
            and entry["run"] == run
            and entry["seed"] == seed
            and (lr is None or entry["lr"] == float(lr))
        ]

    def complete(self, run: str, seed: int, lr: str) -> None:
        """Train a run and add it to the record. Do nothing if the record has the run."""
        if self.found(run, seed, lr):
            return
        training = ConvergenceRun(
            (*shlex.split(run), "--lr", lr),
            tuple(shlex.split(self.cell.common(self._folders))),
            seed,
            WORKERS,
            True,
            self._output,
        )
        training.complete()
        figures = training.figures()
        kept = {name: figures[name] for name in ("lr", "loss", "top1", "uplink_bytes", "downlink_bytes", "ratio")}
        machine = hardware()
        where = {"date": str(machine["date"])[:10], "cpu": machine["cpu"], "commit": _commit()}
        scheme = saved_run(training.directory)["scheme"]
        coded = {name: scheme[name] for name in ("codec", "feedback", "downlink", "downlink_lead")}
        store([*load(), {"cell": self.cell.name, "run": run, "seed": seed, **kept, **coded, **where}])

    def best(self, run: str) -> str:
        """Return the learning rate with the least loss for the first seed.

        For a run that tries no rates of its own, this is dense's rate. Rates are added until the best one is neither the lowest
        nor the highest.
        """
        rates = _ADAM_RATES if self.cell.adam else _PLAIN_RATES if run in PLAIN else _SGD_RATES
        if run != "dense" and (self.cell.adam or run not in PLAIN):
            return self.best("dense")
        tried = list(rates)
        while True:
            best = min(tried, key=lambda lr: self._loss_at(run, lr))
            if best == tried[0]:
                tried.insert(0, f"{float(best) / 3:.1g}")
            elif best == tried[-1]:
                tried.append(f"{float(best) * 3:.1g}")
            else:
                return best

    def _loss_at(self, run: str, lr: str) -> float:
        """Return the loss with the first seed at the rate `lr`.

        If the run diverged, it is infinite, and the record gets no entry.
        """
        if (run, lr) in self._diverged:
            return math.inf
        try:
            self.complete(run, 1, lr)
        except DivergedError as error:
            print(f"{self.cell.name}, {run}, lr {lr}: {error}", file=sys.stderr)
            self._diverged.add((run, lr))
            return math.inf
        return float(self.found(run, 1, lr)[0]["loss"])


def missing(cells: Sequence[Cell], runs: Sequence[str], seeds: int) -> Iterator[tuple[Cell, str, int]]:
    """Yield all trainings as cell, run and seed: first those with the first seed."""
    for seed in range(1, seeds + 1):
        for cell in cells:
            for run in ("dense", *runs):
                yield cell, run, seed


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Run the command `run` or `list`, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    running = commands.add_parser("run")
    running.add_argument("output", type=Path)
    running.add_argument("--mnist", default="")
    running.add_argument("--cifar10", default="")
    running.add_argument("--cell", action="append", help="a cell's name or its beginning; repeat for more; all without it")
    running.add_argument("--run", action="append", help="a scheme and flags; repeat for more; those of the record without it")
    running.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(arguments)
    if given.command == "list":
        for cell in CELLS:
            print(f"{cell.name:24} {sum(entry['cell'] == cell.name for entry in load())}")
        return 0
    chosen = [cell for cell in CELLS if not given.cell or any(cell.name.startswith(name) for name in given.cell)]
    base = given.output / "base"
    if not (base / "config.json").exists():
        subprocess.run([sys.executable, "examples/lora.py", "base", str(base)], cwd=ROOT, check=True)
    folders = {"mnist": given.mnist, "cifar10": given.cifar10, "base": str(base)}
    recorders = {cell: Recorder(cell, given.output, folders) for cell in chosen}
    for cell, run, seed in missing(chosen, given.run or SCHEMES, given.seeds):
        recorders[cell].complete(run, seed, recorders[cell].best(run))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
