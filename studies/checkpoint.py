"""`python -m studies.checkpoint`: the delay that checkpoints of a large model cause in a training.

The study runs a real job on this machine, `psnode launch -n W -- train` with GPT-2's shapes (psnode.tasks.gpt2), AdamW and
top-k in both directions, which writes checkpoints. Workers mark the beginning of each backward pass. A step lasts from the
beginning of its backward pass to the beginning of the next one. Usual steps are steps without any work on a checkpoint. A
checkpoint of step v affects steps v and v + 1: its hold-up is the time of these two steps minus the time of two usual steps.
Later steps are slowed down until the manifest of the checkpoint is written. With --checkout, the psnode of another checkout is
measured by the same program and marks.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from psnode.config.declaration import option
from psnode.errors import ConfigurationError, TransportError
from psnode.records.checkpoint import CHECKPOINTS, MANIFEST, complete, step_of
from psnode.records.metrics import SUMMARY
from psnode.tasks import gpt2
from studies.harness import Column, Found, Result, Study, main

SCHEME = "topk:ratio=0.005+fp16"
_TASK = Path(gpt2.__file__)
_WARM = 4  # first steps that do not count: kernels are compiled, and caches filled
_COMMON = "--batch-size 1 --optimizer adamw --lr 1e-4 --keep-last 1 --no-tensorboard --hash-every 0 --log-interval 1000"


class Figures(NamedTuple):
    """Figures of a checkpoint.

    `holdup`: seconds by which two steps are longer than usual. `published`: seconds from the backward pass of the checkpoint's
    step until its publication. `slowdown`: mean excess, relative to a usual step, of the later steps during which the
    checkpoint is written; None if there is no such step.
    """

    step: int
    holdup: float
    published: float
    slowdown: float | None
    nbytes: int


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.checkpoint`."""

    model: str = option("124m", "GPT-2's shapes.", choices=("124m", "355m", "tiny"))
    workers: int = option(2, "Workers of the job.", minimum=1, aliases=("-n",))
    every: int = option(12, "Steps between checkpoints.", minimum=1)
    checkpoints: int = option(3, "How many are measured.", minimum=1)
    train: str = option("", "More flags of train, as one text.", metavar="FLAGS")
    checkout: Path | None = option(None, "Measure the psnode of this directory.", metavar="DIR")


def measure(options: Options) -> Found:
    """Return a row per checkpoint (`Figures`). For all rows together: `step`, the seconds of a usual step, and `peak_bytes`.

    Raises ConfigurationError for options that do not fit, and TransportError if the job fails.
    """
    workers, every, checkout = options.workers, options.every, options.checkout
    if every < 6:
        raise ConfigurationError(f"--every {every} leaves no usual steps between checkpoints: take 6 or more")
    if checkout is not None and not (checkout / "psnode" / "__init__.py").is_file():
        raise ConfigurationError(f"--checkout {checkout} is no checkout of psnode: name a directory with psnode/ in it")
    with tempfile.TemporaryDirectory(prefix="psnode-checkpoint-", dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        (folder / "marks").mkdir()
        steps = every * options.checkpoints + every - 1
        arguments = [
            *_COMMON.split(), "--task", f"{_TASK}:Gpt2", "--task-option", f"model={options.model}",
            "--task-option", f"marks={folder / 'marks'}", "--scheme", SCHEME, "--downlink", SCHEME,
            "--eval-freq", str(every), "--max-steps", str(steps),
            "--train-dir", str(folder / "run"), *shlex.split(options.train),
        ]  # fmt: skip
        published = _train(arguments, workers, checkout, folder / "run")
        marks = [_marks(path, steps) for path in sorted((folder / "marks").iterdir())]
        if len(marks) < workers:
            raise TransportError(f"{len(marks)} of {workers} workers have left marks")
        master = json.loads((folder / "run" / SUMMARY).read_bytes())["peak_memory_bytes"]
        peaks = {"master": master, **{f"worker {n}": int(each[-1]["peak_bytes"]) for n, each in enumerate(marks, 1)}}
        times = [each["seconds"] for each in marks[0]]
    usual, found = figures(times, {step: when for step, when in published.items() if step % every == 0})
    rows = [each._replace(nbytes=published[each.step][1])._asdict() for each in found]
    return Found(rows, {"step": usual, "peak_bytes": peaks})


def figures(times: Sequence[float], published: Mapping[int, tuple[float, int]]) -> tuple[float, list[Figures]]:
    """Return the seconds of a usual step, and the figures of each checkpoint.

    `times[t - 1]`: the time at which the backward pass of step t began. `published`: for each step with a checkpoint, the time
    at which the checkpoint was published, and its bytes.
    """
    lasts = {step: times[step] - times[step - 1] for step in range(1, len(times))}
    busy = {
        step for at, (when, _) in published.items() for step in lasts if at <= step and (step <= at + 1 or times[step - 1] < when)
    }
    usual = median([seconds for step, seconds in lasts.items() if step > _WARM and step not in busy])
    found = []
    for at, (when, nbytes) in sorted(published.items()):
        behind = [lasts[step] for step in lasts if step > at + 1 and times[step - 1] < when]
        holdup = sum(lasts[step] for step in (at, at + 1) if step in lasts) - 2 * usual
        found.append(Figures(at, holdup, when - times[at - 1], fmean(behind) / usual - 1 if behind else None, nbytes))
    return usual, found


def _train(arguments: Sequence[str], workers: int, checkout: Path | None, run_directory: Path) -> dict[int, tuple[float, int]]:
    """Run the job. Return, by the step of each checkpoint, the time of its publication and its bytes."""
    root = str((checkout or Path(__file__).parents[1]).resolve())
    environment = {**os.environ, "PYTHONPATH": root, "PSNODE_NORM_CAP": "off"}
    command = [sys.executable, "-m", "psnode", "launch", "-n", str(workers), "--kill-after", "120", "--", "train", *arguments]
    process = subprocess.Popen(command, env=environment, cwd=root, stdin=subprocess.DEVNULL)
    published: dict[int, tuple[float, int]] = {}
    while True:
        published |= _published(run_directory, published)
        try:
            code = process.wait(0.2)
            break
        except subprocess.TimeoutExpired:
            continue
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code != 0:
        raise TransportError(f"the job ended with exit code {code}: see its messages above")
    return published | _published(run_directory, published)


def _published(run_directory: Path, known: Mapping[int, object]) -> dict[int, tuple[float, int]]:
    """Return the checkpoints that are not in `known`: by step, the time of publication and the bytes.

    The time is that of the manifest. Call this often, because later checkpoints remove earlier ones, and because a verdict on a
    checkpoint replaces its manifest.
    """
    found = {}
    for path in complete(run_directory) if (run_directory / CHECKPOINTS).is_dir() else ():
        if step_of(path) not in known:
            files = [each.stat() for each in path.rglob("*") if each.is_file()]
            found[step_of(path)] = (path / MANIFEST).stat().st_mtime, sum(each.st_size for each in files)
    return found


def _marks(path: Path, steps: int) -> list[dict[str, float]]:
    """Return a worker's marks of the last `steps` passes, without those of passes before the first step."""
    return [json.loads(line) for line in path.read_text().splitlines()][-steps:]


def _head(result: Result) -> str:
    job = f"GPT-2 of {result['model']}, {result['workers']} workers"
    return f"{job}; a step takes {result['step']:.2f} s without a checkpoint."


def _foot(result: Result) -> str:
    return "Peak memory, GB: " + ", ".join(f"{name} {peak / 1e9:.2f}" for name, peak in result["peak_bytes"].items()) + "."


COLUMNS = (
    Column("checkpoint", "{step}"),
    Column("hold-up, s", "{holdup:.2f}"),
    Column("steps while it is written", lambda row: "-" if row["slowdown"] is None else f"{100 * row['slowdown']:+.0f} %"),
    Column("published after, s", "{published:.1f}"),
    Column("GB", lambda row: f"{row['nbytes'] / 1e9:.2f}"),
)
STUDY = Study(Options, measure, COLUMNS, _head, _foot)


if __name__ == "__main__":
    sys.exit(main(STUDY))
