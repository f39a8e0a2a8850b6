"""`psnode bench checkpoint`: what a checkpoint costs the training of a large model.

A real job on this machine, `psnode launch -n W -- train` with GPT-2's shapes (psnode.tasks.gpt2), AdamW and top-k both ways,
which makes a checkpoint now and then. Steps are timed by the workers' marks, from the beginning of a backward pass to that of
the next one. Usual are the steps during which nothing of a checkpoint is going on. A checkpoint of step v falls into the time
from the backward pass of v to that of v + 2: its hold-up is what these two steps take more than two usual ones. The steps
behind, until its manifest has been written, are slowed down. With `checkout` another checkout of psnode is measured, by the
same program and marks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from psnode.bench.hardware import hardware
from psnode.bench.saving import save
from psnode.errors import ConfigurationError, TransportError
from psnode.records.checkpoint import CHECKPOINTS, MANIFEST, complete, step_of
from psnode.records.metrics import SUMMARY

SCHEME = "topk:ratio=0.005+fp16"
_TASK = Path(__file__).parents[1] / "tasks" / "gpt2.py"
_WARM = 4  # steps before the first that counts: kernels, caches
_COMMON = "--batch-size 1 --optimizer adamw --lr 1e-4 --keep-last 1 --no-tensorboard --hash-every 0 --log-interval 1000"


class Figures(NamedTuple):
    """Seconds of a checkpoint: the hold-up, and until it was published since the backward pass of its step began.

    `slowdown`: what a step behind takes more than a usual one while the checkpoint is written, as a part of that; None: there
    is no such step.
    """

    step: int
    holdup: float
    published: float
    slowdown: float | None
    nbytes: int


def run(model: str, *, workers: int, every: int, checkpoints: int, flags: Sequence[str], checkout: Path | None) -> dict[str, Any]:
    """Measure. TransportError if the job fails. `flags`: more of train's; `checkout`: a directory with another psnode."""
    if every < 6:
        raise ConfigurationError(f"--every {every} leaves no usual steps between checkpoints: take 6 or more")
    if checkout is not None and not (checkout / "psnode" / "__init__.py").is_file():
        raise ConfigurationError(f"--checkout {checkout} is no checkout of psnode: name a directory with psnode/ in it")
    with tempfile.TemporaryDirectory(prefix="psnode-checkpoint-", dir=os.environ.get("TMPDIR")) as name:
        folder = Path(name)
        (folder / "marks").mkdir()
        steps = every * checkpoints + every - 1
        arguments = [
            *_COMMON.split(), "--task", f"{_TASK}:Gpt2", "--task-option", f"model={model}",
            "--task-option", f"marks={folder / 'marks'}", "--scheme", SCHEME, "--downlink", SCHEME,
            "--eval-freq", str(every), "--max-steps", str(steps),
            "--train-dir", str(folder / "run"), *flags,
        ]  # fmt: skip
        published = _train(arguments, workers, checkout, folder / "run")
        marks = [_marks(path, steps) for path in sorted((folder / "marks").iterdir())]
        if len(marks) < workers:
            raise TransportError(f"{len(marks)} of {workers} workers have left marks")
        master = json.loads((folder / "run" / SUMMARY).read_bytes())["peak_memory_bytes"]
        peaks = {"master": master, **{f"worker {n}": int(each[-1]["peak_bytes"]) for n, each in enumerate(marks, 1)}}
        times = [each["seconds"] for each in marks[0]]
    usual, found = figures(times, {step: when for step, when in published.items() if step % every == 0})
    return {
        **hardware(), "model": model, "workers": workers, "every": every, "flags": list(flags), "checkout": str(checkout or ""),
        "step": usual, "peak_bytes": peaks,
        "checkpoints": [each._replace(nbytes=published[each.step][1])._asdict() for each in found],
    }  # fmt: skip


def figures(times: Sequence[float], published: Mapping[int, tuple[float, int]]) -> tuple[float, list[Figures]]:
    """Seconds of a usual step, and what each checkpoint cost. `times[t - 1]`: when the backward pass of step t began.

    `published`: when the checkpoint of a step was, and its bytes.
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
    """Train; by step when its checkpoint was published, and its bytes."""
    root = str((checkout or Path(__file__).resolve().parents[2]).resolve())
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
    """Checkpoints that are new: later ones push them out, and verdicts replace their manifests."""
    found = {}
    for path in complete(run_directory) if (run_directory / CHECKPOINTS).is_dir() else ():
        if step_of(path) not in known:
            files = [each.stat() for each in path.rglob("*") if each.is_file()]
            found[step_of(path)] = (path / MANIFEST).stat().st_mtime, sum(each.st_size for each in files)
    return found


def _marks(path: Path, steps: int) -> list[dict[str, float]]:
    """A worker's marks of the steps: passes before the first, in which it measures or rehearses, are left out."""
    return [json.loads(line) for line in path.read_text().splitlines()][-steps:]


def markdown(result: Mapping[str, Any]) -> str:
    """The result as a page for docs/results."""
    lines = [
        f"{result['date']}, {result['cpu']}, {result['cores']} cores: GPT-2 of {result['model']}, {result['workers']} workers, "
        f"a step takes {result['step']:.2f} s without a checkpoint\n",
        "| checkpoint | hold-up, s | steps while it is written | published after, s | GB |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in result["checkpoints"]:
        slower = "-" if row["slowdown"] is None else f"{100 * row['slowdown']:+.0f} %"
        figures = f"{row['holdup']:.2f} | {slower} | {row['published']:.1f} | {row['nbytes'] / 1e9:.2f}"
        lines.append(f"| {row['step']} | {figures} |")
    peaks = ", ".join(f"{name} {peak / 1e9:.2f}" for name, peak in result["peak_bytes"].items())
    return "\n".join(lines) + f"\n\nPeak memory, GB: {peaks}\n"


def main(json_file: Path | None, **options: Any) -> int:
    """Run, print the table, write it as JSON; the exit code."""
    result = run(**options)
    print(markdown(result))
    save(result, json_file)
    return 0
