"""One trial: a training job in a directory of its own, up to some step, with what it came to."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from psnode.config.files import read_json
from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError
from psnode.jobs import resumable
from psnode.records import checkpoint
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
        """Train up to `steps`, evaluate if `metric` wants it; the exit code of what failed or was stopped, else 0.

        That of a training is kept: one that failed before does not begin again. One that has come so far does nothing. An
        evaluation that failed is tried again with the next call.
        """
        resumable.require_same(self.directory, self.arguments)
        code = self.failed(steps) or self._train(self.directory, self.arguments, steps)
        if code and code not in STOPPED:
            write_atomically(self.directory / _FAILED, to_json({"exit_code": code, "steps": steps}).encode() + b"\n")
        if not code and metric != TRAIN_LOSS and self._measured(steps) is None:
            code = self._evaluate(steps)
        return code

    def _train(self, directory: Path, arguments: Sequence[str], steps: int) -> int:
        if self._reached(directory) >= steps:
            return 0
        resume = ["--resume"] if resumable.begin(directory, arguments) else []
        end = ["--stop-after" if self.planned else "--max-steps", str(steps)]
        return self._call([*arguments, *(end if steps != self.planned else []), *resume])

    def _reached(self, directory: Path) -> int:
        """The steps that are taken and need not be taken again: those of a run that ended well, or failed later."""
        finished = resumable.finished(directory)
        if finished or not (directory / _FAILED).exists():
            return finished
        return max((int(record["step"]) for record in read_records(directory / METRICS)), default=0)

    def _evaluate(self, steps: int) -> int:
        """Measure the weights of `steps`. Where the run has gone on and does not keep them, it is run up to there once more."""
        directory = self.directory
        if not (directory / checkpoint.CHECKPOINTS / checkpoint.step_directory(steps)).is_dir():
            directory = self._again(steps)
            if code := self._train(directory, (*self.arguments[:-1], str(directory)), steps):
                return code
        return self._call(["evaluate", "--train-dir", str(directory), "--checkpoint", str(steps), "--trust-run"])

    def _again(self, steps: int) -> Path:
        return self.directory / f"to-step-{steps}"

    def _call(self, arguments: Sequence[str]) -> int:
        return resumable.run_psnode(arguments, self.directory / LOG)

    def failed(self, steps: int) -> int | None:
        """The exit code by which the training failed, if it did before it had taken `steps`."""
        try:
            code = int(read_json(self.directory / _FAILED)["exit_code"])
        except FileNotFoundError:
            return None
        return code if self._reached(self.directory) < steps else None

    def _measured(self, steps: int) -> dict[str, Any] | None:
        """The latest evaluation of the weights of `steps`."""
        places = (self.directory, self._again(steps))
        rows = [row for place in places for row in read_records(place / EVALUATIONS) if row["step"] == steps]
        return rows[-1] if rows else None

    def result(self, steps: int, metric: str) -> float | None:
        """The metric after `steps`; None if it has not been measured, or is not finite."""
        if metric == TRAIN_LOSS:
            first = steps - max(1, round(_LAST * steps))
            losses = [record["loss"] for record in read_records(self.directory / METRICS) if first < record["step"] <= steps]
            found = fmean(losses) if losses and None not in losses else None
        else:
            row = self._measured(steps)
            known = {metric: None} if row is None else {**row["metrics"], "loss": row["loss"]}
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
