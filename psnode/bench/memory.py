"""`psnode bench memory`: the growth of the master's memory.

Real jobs of two steps on synthetic data, `psnode launch -n P -- train ...`, whose summaries hold the highest resident
memory of rank 0. A small network with the same scheme gives the share that Python, torch, torchvision, MPI and compiled kernels
take by themselves; it runs twice, since whoever compiles a kernel that no earlier run left behind holds the compiler as
well. The memory above that is stated in copies of the model: weights, the optimizer's state and one accumulator make 3 with
momentum, a dense downlink adds the one copy that all workers are sent, a coded one the residual and the decoded values,
and every worker its coded gradients on their way in.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from psnode.bench.hardware import hardware
from psnode.bench.saving import save
from psnode.errors import PsnodeError
from psnode.jobs.launch import launch
from psnode.records.metrics import SUMMARY

_SMALL = ["--network", "torchvision:squeezenet1_1"]  # 2.9 MB
_COMMON = "--dataset synthetic --batch-size 2 --max-steps 2 --eval-freq 0 --momentum 0.9 --threads 1 --no-tensorboard"
_FLOAT_BYTES = 4


def run(networks: Sequence[str], workers: Sequence[int], schemes: Sequence[str]) -> dict[str, Any]:
    """Measure every combination. PsnodeError when a run fails or the system does not tell a process's peak memory."""
    rows = []
    for scheme in schemes:
        base = [_peak([*_SMALL, "--scheme", scheme], 1)["peak_memory_bytes"] for _ in range(2)][-1]
        for network in networks:
            for count in workers:
                summary = _peak(["--network", network, "--scheme", scheme], count)
                model = _FLOAT_BYTES * summary["coordinates"]
                above = summary["peak_memory_bytes"] - base
                coded = summary["uplink_bytes"] / summary["steps"] / count
                rows.append(
                    {
                        "network": network,
                        "scheme": scheme,
                        "workers": count,
                        "base_bytes": base,
                        "peak_bytes": summary["peak_memory_bytes"],
                        "model_bytes": model,
                        "copies": above / model,
                        "coded": coded / model,
                    }
                )
    return {**hardware(), "rows": rows}


def _peak(flags: Sequence[str], workers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        code = launch(workers, ["train", *_COMMON.split(), *flags, "--train-dir", directory])
        if code != 0:
            raise PsnodeError(f"the run {' '.join(flags)} ended with exit code {code}: see its messages above")
        summary: dict[str, Any] = json.loads((Path(directory) / SUMMARY).read_bytes())
    if summary["peak_memory_bytes"] is None:
        raise PsnodeError("this system does not tell the peak memory of a process: it needs Linux's /proc")
    return summary


def markdown(result: dict[str, Any]) -> str:
    """The result as a page for docs/results."""
    lines = [
        "| network | model, MB | scheme | workers | base, MB | peak, MB | models above the base | models a worker sends |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in result["rows"]:
        model, base, peak = (row[name] / 1e6 for name in ("model_bytes", "base_bytes", "peak_bytes"))
        figures = f"{model:.1f} | {row['scheme']} | {row['workers']} | {base:.0f} | {peak:.0f}"
        figures += f" | {row['copies']:.2f} | {row['coded']:.2f}"
        lines.append(f"| {row['network']} | {figures} |")
    return f"{result['date']}, {result['cpu']}, {result['cores']} cores\n\n" + "\n".join(lines) + "\n"


def main(networks: Sequence[str], workers: Sequence[int], schemes: Sequence[str], json_file: Path | None) -> int:
    """Run, print the table, write it as JSON; the exit code."""
    result = run(networks, workers, schemes)
    print(markdown(result))
    save(result, json_file)
    return 0
