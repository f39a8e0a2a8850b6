"""One trial: a training job in a directory of its own, up to some step, with what it came to."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from psnode.config.files import read_json
from psnode.errors import ConfigurationError, DivergedError
from psnode.jobs import resumable
from psnode.records.metrics import EVALUATIONS, METRICS, SUMMARY, read_records, write_atomically

TRAIN_LOSS = "train_loss"  # measured by the run itself; every other metric is an evaluator's
LOG = "output.log"
_FAILED = "failed.json"
_LAST = 0.1  # share of the steps whose mean loss is train_loss
STOPPED = (75, 130)  # exit codes of a job that somebody stopped


@dataclass(frozen=True)
class Trial:
    """`command`: the words of psnode that begin the job, up to `train`; `options`: those of train, without its length.

    `planned`: the steps that its schedules are made for, however early it ends; 0 if they do not go by where a run ends.
    """

    values: dict[str, str]
    command: tuple[str, ...]
    options: tuple[str, ...]
    output: Path
    planned: int = 0

    @property
    def name(self) -> str:
        """The values, in a line."""
        return " ".join(f"{name}={value}" for name, value in self.values.items())

    @property
    def directory(self) -> Path:
        """The directory of its run, named after the values."""
        return self.output / re.sub(r"[^\w.+=,-]", "_", self.name.replace(" ", ","))

    @property
    def arguments(self) -> tuple[str, ...]:
        """The words of psnode, but for where it ends and whether it is resumed."""
        plan = ("--max-steps", str(self.planned)) if self.planned else ()
        return (*self.command, *self.options, *plan, "--train-dir", str(self.directory))

    def advance(self, steps: int, metric: str) -> int:
        """Train up to `steps`, evaluate if `metric` wants it; the exit code, which is kept if it is none of a stop.

        A trial that failed before does not begin again, and one that has come so far does nothing.
        """
        resumable.require_same(self.directory, self.arguments)
        code = self.failed
        if code is None and resumable.finished(self.directory) < steps:
            resume = ["--resume"] if resumable.begin(self.directory, self.arguments) else []
            end = ["--stop-after" if self.planned else "--max-steps", str(steps)]
            code = self._call([*self.arguments, *(end if steps != self.planned else []), *resume])
        if not code and metric != TRAIN_LOSS and self.result(steps, metric) is None:
            which = ["--checkpoint", str(steps), "--trust-run"]
            code = self._call(["evaluate", "--train-dir", str(self.directory), *which])
        if code and code not in STOPPED:
            write_atomically(self.directory / _FAILED, json.dumps({"exit_code": code, "steps": steps}).encode() + b"\n")
        return code or 0

    def _call(self, arguments: Sequence[str]) -> int:
        return resumable.run_psnode(arguments, self.directory / LOG)

    @property
    def failed(self) -> int | None:
        """The exit code by which it failed, if it did."""
        try:
            return int(read_json(self.directory / _FAILED)["exit_code"])
        except FileNotFoundError:
            return None

    @property
    def trouble(self) -> str:
        """Why it failed, in a word or two; empty if it did not."""
        code = self.failed
        return "" if code is None else "diverged" if code == DivergedError.exit_code else f"failed ({code})"

    def result(self, steps: int, metric: str) -> float | None:
        """The metric after `steps`; None if it has not been measured, or is not finite."""
        if metric == TRAIN_LOSS:
            first = steps - max(1, round(_LAST * steps))
            losses = [record["loss"] for record in read_records(self.directory / METRICS) if first < record["step"] <= steps]
            found = fmean(losses) if losses and None not in losses else None
        else:
            rows = [row for row in read_records(self.directory / EVALUATIONS) if row["step"] == steps]
            known = {**rows[-1]["metrics"], "loss": rows[-1]["loss"]} if rows else {metric: None}
            if metric not in known:
                raise ConfigurationError(
                    f"--metric {metric} is none of the task's: choose from {', '.join([*known, TRAIN_LOSS])}"
                )
            found = known[metric]
        return found if found is not None and math.isfinite(found) else None

    def sent(self) -> dict[str, Any]:
        """Steps, seconds and bytes of the run so far."""
        try:
            summary = read_json(self.directory / SUMMARY)
        except FileNotFoundError:
            return {"steps": 0, "seconds": 0.0, "bytes": 0}
        return {
            "steps": summary["steps"],
            "seconds": summary["seconds"],
            "bytes": summary["uplink_bytes"] + summary["downlink_bytes"],
        }
