"""`psnode bench convergence`: the same model and data trained with several schemes for the same number of steps.

Every run is a job of its own, `psnode launch -n P -- train ...`, or `psnode train --local P ...` where cores are few: the sums
are the same, and no rank waits in MPI. Its last checkpoint is then evaluated. What is reported is read from the run's own
files: final accuracy and loss on the test set, bytes each way, times a step.
"""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psnode.bench.hardware import hardware
from psnode.bench.saving import save
from psnode.errors import PsnodeError
from psnode.launch import launch
from psnode.metrics import METRICS, SUMMARY, read_records

_SETTLED = 0.1  # the share of a run's first steps that is left out of its times: compilation, cold caches


def run(runs: Sequence[str], common: str, workers: int, seeds: Sequence[int], output: Path, local: bool) -> dict[str, Any]:
    """Train and evaluate each of `runs`, texts such as "qsgd" or "signsgd --lr 0.001": a scheme and flags of its own.

    `common`: flags of all runs. Runs write into `output`/RUN-seed, which must not hold them yet. Raises PsnodeError
    when a run does not end with 0.
    """
    rows = []
    for text in runs:
        scheme, *flags = shlex.split(text)
        measured = [_measure([scheme, *flags], shlex.split(common), workers, seed, output, local) for seed in seeds]
        rows.append({"run": text, "seeds": list(seeds), **_combined(measured)})
    return {**hardware(), "workers": workers, "common": common, "rows": rows}


def _measure(flags: Sequence[str], common: Sequence[str], workers: int, seed: int, output: Path, local: bool) -> dict[str, Any]:
    from psnode.evaluator import follow

    scheme, *own = flags
    train_dir = output / f"{'-'.join(flags).replace('/', '_').replace(' ', '')}-{seed}"
    arguments = [
        "train",
        *common,
        "--scheme",
        scheme,
        *own,
        "--seed",
        str(seed),
        "--train-dir",
        str(train_dir),
        "--eval-freq",
        "0",
    ]
    code = _run_local(workers, arguments) if local else launch(workers, arguments)
    if code != 0:
        raise PsnodeError(f"the run {' '.join(flags)} with seed {seed} ended with exit code {code}: see its messages above")
    follow(train_dir, once=True)
    evaluation = list(read_records(train_dir / "evaluations.jsonl"))[-1]
    summary = json.loads((train_dir / SUMMARY).read_bytes())
    records = list(read_records(train_dir / METRICS))
    settled = records[int(_SETTLED * len(records)) :]
    return {
        "top1": evaluation["top1"],
        "loss": evaluation["loss"],
        "uplink_bytes": summary["uplink_bytes"] / summary["steps"] / workers,
        "downlink_bytes": summary["downlink_bytes"] / summary["steps"] / workers,
        "ratio": summary["compression_ratio"],
        "step": statistics.median(record["seconds"]["step"] for record in settled),
        "encode": statistics.median(record["seconds"]["encode"] for record in settled),
    }


def _run_local(workers: int, arguments: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "psnode", *arguments, "--local", str(workers)], check=False).returncode


def _combined(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the seeds, and the accuracies one by one; bytes are those of one worker in one step."""
    means = {name: statistics.fmean(each[name] for each in measured) for name in measured[0] if measured[0][name] is not None}
    return {**means, "all_top1": [each["top1"] for each in measured]}


def markdown(result: dict[str, Any]) -> str:
    """The result as a page for docs/results."""
    lines = [
        "| run | test top1 | spread | loss | bytes up | bytes down | ratio | step | encode |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        spread = max(row["all_top1"]) - min(row["all_top1"])
        lines.append(
            f"| {row['run']} | {100 * row['top1']:.2f} % | {100 * spread:.2f} | {row['loss']:.4f} | {row['uplink_bytes']:,.0f} "
            f"| {row['downlink_bytes']:,.0f} | {row['ratio']:.1f} | {1e3 * row['step']:.1f} ms | {1e3 * row['encode']:.1f} ms |"
        )
    head = f"{result['date']}, {result['cpu']}, {result['cores']} cores, {result['workers']} workers, `{result['common']}`"
    return f"{head}\n\nBytes are those of one worker in one step.\n\n" + "\n".join(lines) + "\n"


def main(
    runs: Sequence[str], common: str, workers: int, seeds: Sequence[int], output: Path, local: bool, json_file: Path | None
) -> int:
    """Run, print the table, write it as JSON; the exit code."""
    result = run(runs, common, workers, seeds, output, local)
    print(markdown(result))
    save(result, json_file)
    return 0
