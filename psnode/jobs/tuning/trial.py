"""A trial: a training job in its own directory, up to some step, and its result."""

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
from psnode.jobs import subprocess_runs
from psnode.records import checkpoint
from psnode.records.metrics import EVALUATIONS, METRICS, SUMMARY, read_records, write_atomically

TRAIN_LOSS = "train_loss"  # the run itself measures this metric; an evaluator measures all others
LOG = "output.log"
_FAILED = "failed.json"
_LAST = 0.1  # train_loss is the mean loss of this final fraction of the steps
STOPPED = (75, 130)  # exit codes of a job that was stopped


@dataclass(frozen=True)
class Trial:
    """A trial of a sweep.

    * values: the varied settings as text
    * command: words of the psnode command that start the job, up to `train`
    * options: options of train, except those for the number of steps
    * output: directory of the sweep
    * planned: number of steps for which the schedules are made, even if the trial ends earlier; 0 if the schedules need no
      end
    """

    values: dict[str, str]
    command: tuple[str, ...]
    options: tuple[str, ...]
    output: Path
    planned: int = 0

    @property
    def name(self) -> str:
        """Return the values in one line."""
        return " ".join(f"{name}={value}" for name, value in self.values.items())

    @property
    def directory(self) -> Path:
        """Return the directory of the run, named after the values."""
        return self.output / re.sub(r"[^\w.+=,-]", "_", self.name.replace(" ", ","))

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the words of the psnode command, except for --resume and the option that ends the run after some step."""
        plan = ("--max-steps", str(self.planned)) if self.planned else ()
        return (*self.command, *self.options, *plan, "--train-dir", str(self.directory))

    def advance(self, steps: int, metric: str) -> int:
        """Train up to step `steps`, and evaluate the weights if `metric` requires it.

        Returns the exit code if the training or the evaluation failed or was stopped, otherwise 0. After a failed training,
        later calls for steps that it did not reach return its exit code and do not start it again. A training that has
        reached `steps` is not repeated. After a failed evaluation, the next call tries it again.
        """
        subprocess_runs.require_same(self.directory, self.arguments)
        code = self.failed(steps) or self._train(self.directory, self.arguments, steps)
        if code and code not in STOPPED:
            write_atomically(self.directory / _FAILED, to_json({"exit_code": code, "steps": steps}).encode() + b"\n")
        if not code and metric != TRAIN_LOSS and self._measured(steps) is None:
            code = self._evaluate(steps)
        return code

    def _train(self, directory: Path, arguments: Sequence[str], steps: int) -> int:
        if self._reached(directory) >= steps:
            return 0
        resume = ["--resume"] if subprocess_runs.begin(directory, arguments) else []
        end = ["--stop-after" if self.planned else "--max-steps", str(steps)]
        return self._call([*arguments, *(end if steps != self.planned else []), *resume])

    def _reached(self, directory: Path) -> int:
        """Return the number of steps that need not be trained again.

        These are the steps of a run that ended successfully, or the recorded steps of a run that failed.
        """
        finished = subprocess_runs.finished(directory)
        if finished or not (directory / _FAILED).exists():
            return finished
        return max((int(record["step"]) for record in read_records(directory / METRICS)), default=0)

    def _evaluate(self, steps: int) -> int:
        """Evaluate the weights after `steps` steps, and return an exit code.

        If the run has deleted the checkpoint of this step, the training up to this step is repeated in another directory.
        """
        directory = self.directory
        if not (directory / checkpoint.CHECKPOINTS / checkpoint.step_directory(steps)).is_dir():
            directory = self._again(steps)
            if code := self._train(directory, (*self.arguments[:-1], str(directory)), steps):
                return code
        return self._call(["evaluate", "--train-dir", str(directory), "--checkpoint", str(steps), "--trust-run"])

    def _again(self, steps: int) -> Path:
        return self.directory / f"to-step-{steps}"

    def _call(self, arguments: Sequence[str]) -> int:
        return subprocess_runs.run_psnode(arguments, self.directory / LOG)

    def failed(self, steps: int) -> int | None:
        """Return the exit code of the training if it failed before `steps`, otherwise None."""
        try:
            code = int(read_json(self.directory / _FAILED)["exit_code"])
        except FileNotFoundError:
            return None
        return code if self._reached(self.directory) < steps else None

    def _measured(self, steps: int) -> dict[str, Any] | None:
        """Return the latest evaluation of the weights after `steps`, or None."""
        places = (self.directory, self._again(steps))
        rows = [row for place in places for row in read_records(place / EVALUATIONS) if row["step"] == steps]
        return rows[-1] if rows else None

    def result(self, steps: int, metric: str) -> float | None:
        """Return the value of `metric` after `steps` steps; None if it has not been measured or is not finite.

        Raises ConfigurationError for an unknown metric.
        """
        if metric == TRAIN_LOSS:
            first = steps - max(1, round(_LAST * steps))
            losses = [record["loss"] for record in read_records(self.directory / METRICS) if first < record["step"] <= steps]
            found = fmean(losses) if losses and None not in losses else None
        else:
            row = self._measured(steps)
            known = {metric: None} if row is None else {**row["metrics"], "loss": row["loss"]}
            if metric not in known:
                raise ConfigurationError(
                    f"--metric {metric} is not one of the task's: choose from {', '.join([*known, TRAIN_LOSS])}"
                )
            found = known[metric]
        return found if found is not None and math.isfinite(found) else None

    def sent(self) -> dict[str, Any]:
        """Return the steps, seconds and bytes of the run so far."""
        try:
            summary = read_json(self.directory / SUMMARY)
        except FileNotFoundError:
            return {"steps": 0, "seconds": 0.0, "bytes": 0}
        return {
            "steps": summary["steps"],
            "seconds": summary["seconds"],
            "bytes": summary["uplink_bytes"] + summary["downlink_bytes"],
        }
