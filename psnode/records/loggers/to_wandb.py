"""Weights & Biases: project, entity and mode are those of its own variables, WANDB_PROJECT, WANDB_ENTITY and WANDB_MODE."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from psnode.records.loggers.base import LoggedRun

_PROJECT = "psnode"  # unless WANDB_PROJECT is set


class WandB:
    """A run of Weights & Biases by the run's id, continued when the run is resumed.

    Two processes cannot write to one of its runs: evaluations are a run of their own, ID-evaluate, and both are in the group ID.
    Steps repeated after a resume appear twice, since `step` is a column and the axis of all others.
    """

    def begin(self, run: LoggedRun) -> None:
        """Begin or continue; offline files go to the run's directory."""
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=f"{run.id}-evaluate" if run.evaluates else run.id,
            group=run.id,
            job_type="evaluate" if run.evaluates else "train",
            name=f"{run.name} evaluations" if run.evaluates else run.name,
            dir=run.directory,
            config=dict(run.settings),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log a row with its step."""
        self._run.log({"step": step, **values})

    def event(self, step: int, text: str) -> None:
        """Log a row with its step and the text, which a table of the run shows."""
        self._run.log({"step": step, "event": text})

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Log the summary, and the exit code with which the run has finished or failed."""
        self._run.summary.update({f"run/{name}": value for name, value in (summary or {}).items()})
        self._run.finish(exit_code=0 if summary is None else summary["exit_code"])
