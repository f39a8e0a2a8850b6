"""`psnode bench convergence`: train the same model on the same data with several schemes for the same number of steps.

Each run is a separate job: `psnode launch -n P -- train ...`, or `psnode train --local P ...` on hosts with few cores, which
gives the same sums without ranks that wait in MPI. The last checkpoint of the run is then evaluated. The report takes its figures
from the files of the run: final accuracy and loss on the test set, bytes in each direction, times of a step.

A table of many runs takes hours. The same command, given again after an interruption, reads finished runs, resumes runs that left
a checkpoint, and begins the others anew.
"""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psnode.bench.hardware import hardware
from psnode.bench.saving import save
from psnode.config.resolve import resolve
from psnode.errors import DivergedError, PsnodeError
from psnode.jobs.subprocess_runs import begin, finished, require_same, run_psnode
from psnode.records.directory import saved_config, saved_run
from psnode.records.metrics import METRICS, SUMMARY, read_records

_SETTLED = 0.1  # the share of a run's steps, its first ones, left out of its times: compilation, cold caches


@dataclass(frozen=True)
class ConvergenceRun:
    """One training run. `flags`: a scheme and its settings; `common`: the flags of all runs."""

    flags: tuple[str, ...]
    common: tuple[str, ...]
    seed: int
    workers: int
    local: bool
    output: Path

    @property
    def directory(self) -> Path:
        """The directory of the run."""
        return self.output / f"{'-'.join(self.flags).replace('/', '_').replace(' ', '')}-{self.seed}"

    @property
    def arguments(self) -> list[str]:
        """The command-line arguments of `psnode` for this run."""
        scheme, *own = self.flags
        train = ["train", *self.common, "--scheme", scheme, *own, "--seed", str(self.seed)]
        train += ["--train-dir", str(self.directory), "--eval-freq", "0"]
        workers = str(self.workers)
        return [*train, "--local", workers] if self.local else ["launch", "-n", workers, "--", *train]

    def complete(self) -> None:
        """Train and evaluate, unless already done.

        Raises DivergedError if the training diverged, PsnodeError on another failure or if the directory holds another run.
        """
        require_same(self.directory, self.arguments)
        if (self.directory / "config.json").exists():
            self._check()
        if not finished(self.directory):
            resume = ["--resume"] if begin(self.directory, self.arguments) else []
            self._call([*self.arguments, *resume])
        self._call(
            ["evaluate", "--once", "--trust-run", "--train-dir", str(self.directory)]
        )  # --trust-run: the caller of this benchmark named the task

    def _check(self) -> None:
        """Refuse a run whose scheme had another meaning when the run began."""
        scheme = resolve(saved_config(self.directory)).to_dict()
        if scheme != saved_run(self.directory).get("scheme"):
            raise PsnodeError(f"{self.directory} was made when its scheme meant something else: choose another --output")

    def _call(self, arguments: Sequence[str]) -> None:
        code = run_psnode(arguments)
        if code != 0:
            name = f"the run {' '.join(self.flags)} with seed {self.seed}"
            kind = DivergedError if code == DivergedError.exit_code else PsnodeError
            raise kind(f"{name} ended with exit code {code}: see its messages above")

    def figures(self) -> dict[str, Any]:
        """Return the figures of the report, read from the files of the run."""
        evaluation = list(read_records(self.directory / "evaluations.jsonl"))[-1]
        summary = json.loads((self.directory / SUMMARY).read_bytes())
        records = list(read_records(self.directory / METRICS))
        settled = records[int(_SETTLED * len(records)) :]
        return {
            "lr": saved_config(self.directory).lr,
            "top1": evaluation["top1"],
            "loss": evaluation["loss"],
            "uplink_bytes": summary["uplink_bytes"] / summary["steps"] / self.workers,
            "downlink_bytes": summary["downlink_bytes"] / summary["steps"] / self.workers,
            "ratio": summary["compression_ratio"],
            "step": statistics.median(record["seconds"]["step"] for record in settled),
            "encode": statistics.median(record["seconds"]["encode"] for record in settled),
        }


def run(
    runs: Sequence[str],
    common: str,
    workers: int,
    seeds: Sequence[int],
    output: Path,
    local: bool,
    *,
    lrs: Sequence[str] = (),
    jobs: int = 1,
    screen: bool = False,
) -> dict[str, Any]:
    """Train and evaluate each of `runs`, texts such as "qsgd" or "signsgd --lr 0.001": a scheme and its own flags.

    `common`: flags of all runs. `lrs`: learning rates to try; each of `runs` is reported at its rate of best accuracy. `screen`:
    compare the rates on the first seed alone, and run the other seeds at the best rate only. `jobs`: number of runs at a time;
    with more than one, the times say little. Runs write to `output`/RUN-seed. Raises PsnodeError when a run ends with a nonzero
    exit code; no further run is then begun.
    """

    def of(text: str, lr: str, seed: int) -> ConvergenceRun:
        flags = (*shlex.split(text), *(("--lr", lr) if lr else ()))
        return ConvergenceRun(flags, tuple(shlex.split(common)), seed, workers, local, output)

    rates = lrs or ("",)
    tuning = seeds[:1] if screen else seeds

    def tried(text: str) -> dict[str, dict[str, Any]]:
        return {lr: _combined([of(text, lr, seed).figures() for seed in tuning]) for lr in rates}

    _complete([of(text, lr, seed) for seed in tuning for text in runs for lr in rates], jobs)
    best = {text: max(found, key=lambda lr: _merit(found[lr])) for text in runs for found in [tried(text)]}
    _complete([of(text, best[text], seed) for seed in seeds for text in runs], jobs)
    rows = []
    for text in runs:
        rates_tried = {f"{found['lr']:g}": found["top1"] for found in tried(text).values()}
        reported = _combined([of(text, best[text], seed).figures() for seed in seeds])
        rows.append({"run": text, "seeds": list(seeds), **reported, "tried": rates_tried})
    return {**hardware(), "workers": workers, "common": common, "rows": rows}


def _complete(runs: Sequence[ConvergenceRun], jobs: int) -> None:
    """Train and evaluate `runs`, `jobs` at a time; after the first failure, begin no further run."""
    pool = ThreadPoolExecutor(jobs)
    try:
        for done in [pool.submit(each.complete) for each in dict.fromkeys(runs)]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _merit(figures: dict[str, Any]) -> float:
    """Return the accuracy, or minus the loss for a task without accuracy."""
    return float(-figures["loss"] if figures["top1"] is None else figures["top1"])


def _combined(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return means over the seeds, all accuracies and the standard error of their mean; bytes are per worker and step."""
    means = {
        name: None if value is None else statistics.fmean(each[name] for each in measured) for name, value in measured[0].items()
    }
    top1 = [each["top1"] for each in measured]
    error = statistics.stdev(top1) / math.sqrt(len(top1)) if len(top1) > 1 and None not in top1 else None
    return {**means, "all_top1": top1, "standard_error": error}


def markdown(result: dict[str, Any]) -> str:
    """Return the result as a page for docs/results."""
    lines = [
        "| run | lr | test top1 | s.e. | loss | bytes up | bytes down | ratio | step | encode |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        error = "" if row["standard_error"] is None else f"{100 * row['standard_error']:.2f}"
        figures = f"{row['uplink_bytes']:,.0f} | {row['downlink_bytes']:,.0f} | {row['ratio']:.1f}"
        times = f"{1e3 * row['step']:.1f} ms | {1e3 * row['encode']:.1f} ms"
        accuracy = "" if row["top1"] is None else f"{100 * row['top1']:.2f} %"
        lines.append(f"| {row['run']} | {row['lr']:g} | {accuracy} | {error} | {row['loss']:.4f} | {figures} | {times} |")
    head = f"{result['date']}, {result['cpu']}, {result['cores']} cores, {result['workers']} workers, `{result['common']}`"
    return f"{head}\n\nBytes are those of one worker in one step.\n\n" + "\n".join(lines) + "\n"


def main(
    runs: Sequence[str],
    common: str,
    workers: int,
    seeds: Sequence[int],
    output: Path,
    local: bool,
    lrs: Sequence[float],
    jobs: int,
    json_file: Path | None,
    screen: bool,
) -> int:
    """Run, print the table, write JSON, and return the exit code."""
    result = run(runs, common, workers, seeds, output, local, lrs=[f"{lr:g}" for lr in lrs], jobs=jobs, screen=screen)
    print(markdown(result))
    save(result, json_file)
    return 0
