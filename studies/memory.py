"""`python -m studies.memory`: peak memory of the master and of a worker, and the prediction of psnode.exchange.footprint.

The study runs real jobs of two steps on synthetic data, `psnode launch -n P -- train ...`. Their summaries contain the peak
resident memory of rank 0 and of the largest worker. A run of a small network with the same scheme gives the base: the memory of
Python, torch, torchvision, MPI and compiled kernels. The small network runs twice, since a process that compiles a kernel also
has the compiler in memory. The measured and the predicted memory above the base are stated in multiples of the model's size.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from psnode.config import Config
from psnode.config.declaration import option
from psnode.config.scheme import Scheme
from psnode.errors import PsnodeError
from psnode.exchange.footprint import Footprint, footprint
from psnode.jobs.launch import launch
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan
from psnode.records.directory import saved_run
from psnode.records.metrics import SUMMARY
from psnode.tasks import gpt2
from studies.harness import Column, Found, Row, Study, main

_SMALL = "torchvision:squeezenet1_1"  # 2.9 MB
_COMMON = "--batch-size 1 --max-steps 2 --eval-freq 0 --threads 1 --no-tensorboard --quiet"
_DATA = "--dataset synthetic --synthetic-shape 3,64,64 --synthetic-examples 16"  # examples with small activations
_TRANSFORMER, _TASK = "gpt2:", Path(gpt2.__file__)
_PEAKS = {"master": "peak_memory_bytes", "worker": "worker_peak_memory_bytes"}


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.memory`."""

    network: tuple[str, ...] = option(
        ("torchvision:resnet18",), "Same as for train, or gpt2:124m, gpt2:355m. Repeat for more.", repeated=True
    )
    scheme: tuple[str, ...] = option(("dense", "qsgd"), "Repeat for more.", repeated=True)
    workers: tuple[int, ...] = option((1, 2, 4), "Repeat for more.", minimum=1, repeated=True, metavar="N", aliases=("-n",))
    flags: str = option("", "Flags of train, for all runs, as one text.", metavar="FLAGS")


def measure(options: Options) -> Found:
    """Return two rows for every combination of scheme, network and workers: one for the master and one for a worker.

    Members: `base_bytes`, `peak_bytes`, `model_bytes`; `copies` and `expected_copies`, the memory above the base in multiples
    of the model's size; `expected_bytes`, the expected peak; `coded`, the bytes that a worker sends in a step, as a multiple of
    the model's size. Raises PsnodeError if a run fails, or if the system does not report the peak memory of a process.
    """
    rows, flags = [], shlex.split(options.flags)
    for scheme in options.scheme:
        base = [_measured(_SMALL, ["--scheme", scheme, *flags], 1) for _ in range(2)][-1]
        for network in options.network:
            for count in options.workers:
                found = _measured(network, ["--scheme", scheme, *flags], count)
                rows += [_row(role, network, scheme, count, base, found) for role in _PEAKS]
    return Found(rows)


class _Measured(NamedTuple):
    """The summary of a run, and the run's expected memory."""

    summary: dict[str, Any]
    need: Footprint

    def expected(self, role: str) -> float:
        return self.need.master_bytes if role == "master" else self.need.worker_bytes


def _row(role: str, network: str, scheme: str, workers: int, base: _Measured, found: _Measured) -> dict[str, Any]:
    model, expected = found.need.vector, found.expected(role) - base.expected(role)
    rest, peak = base.summary[_PEAKS[role]], found.summary[_PEAKS[role]]
    return {
        "network": network, "scheme": scheme, "workers": workers, "role": role, "base_bytes": rest, "peak_bytes": peak,
        "model_bytes": model, "copies": (peak - rest) / model, "expected_copies": expected / model,
        "expected_bytes": rest + expected, "coded": found.summary["uplink_bytes"] / found.summary["steps"] / workers / model,
    }  # fmt: skip


def _what(network: str) -> list[str]:
    """Return the flags of train that select the model and its data."""
    if network.startswith(_TRANSFORMER):
        return ["--task", f"{_TASK}:Gpt2", "--task-option", f"model={network.removeprefix(_TRANSFORMER)}"]
    return ["--network", network, *_DATA.split()]


def _measured(network: str, flags: Sequence[str], workers: int) -> _Measured:
    with tempfile.TemporaryDirectory() as directory:
        code = launch(workers, ["train", *_what(network), *_COMMON.split(), *flags, "--train-dir", directory])
        if code != 0:
            raise PsnodeError(f"the run of {network} with {' '.join(flags)} ended with exit code {code}: see its messages above")
        summary: dict[str, Any] = json.loads((Path(directory) / SUMMARY).read_bytes())
        saved = saved_run(Path(directory))
    if None in (summary[name] for name in _PEAKS.values()):
        raise PsnodeError("this system does not tell the peak memory of a process: it needs Linux's /proc")
    config, scheme = Config.from_dict(saved["config"]), Scheme.from_dict(saved["scheme"])
    return _Measured(summary, footprint(Coding(Plan.from_dict(saved["plan"]), scheme), config, workers))


def _megabytes(name: str) -> Callable[[Row], str]:
    return lambda row: f"{row[name] / 1e6:.0f}"


COLUMNS = (
    Column("network", "{network}", left=True),
    Column("model, MB", lambda row: f"{row['model_bytes'] / 1e6:.1f}"),
    Column("scheme", "{scheme}", left=True),
    Column("workers", "{workers}"),
    Column("role", "{role}", left=True),
    Column("base, MB", _megabytes("base_bytes")),
    Column("peak, MB", _megabytes("peak_bytes")),
    Column("expected, MB", _megabytes("expected_bytes")),
    Column("off", lambda row: f"{100 * (row['peak_bytes'] / row['expected_bytes'] - 1):+.1f} %"),
    Column("copies above", "{copies:.2f}"),
    Column("expected", "{expected_copies:.2f}"),
)
STUDY = Study(Options, measure, COLUMNS, head=lambda result: f"Flags `{result['flags']}`.")


if __name__ == "__main__":
    sys.exit(main(STUDY))
