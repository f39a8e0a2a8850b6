"""Logger to MLflow: to the store that MLFLOW_TRACKING_URI names, or to mlflow.db (SQLite) in the run's directory."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from psnode.records.loggers.base import LoggedRun

_EXPERIMENT = "psnode"  # unless MLFLOW_EXPERIMENT_NAME is set
_STORE = "mlflow.db"
_ID = "psnode.id"  # the tag that identifies a run
_LONGEST = 5000  # maximum characters of a tag or a parameter
_ENDS = {0: "FINISHED", 75: "KILLED", 130: "KILLED"}  # status by exit code; any other exit code means FAILED


class MLflow:
    """A run of MLflow. The evaluator and a resumed run find it by its tag `psnode.id`."""

    def begin(self, run: LoggedRun) -> None:
        """Find or create the run of MLflow, and log the settings as its parameters.

        MLflow cannot change parameters, so settings changed by a resume become tags `now.NAME`.
        """
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{run.directory / _STORE}"))
        experiment = _experiment(client)
        found = client.search_runs([experiment], f"tags.`{_ID}` = '{run.id}'", max_results=1)
        entity = found[0] if found else client.create_run(experiment, run_name=run.name, tags={_ID: run.id})
        self._client, self._id, self._evaluates = client, entity.info.run_id, run.evaluates
        if run.evaluates:
            return
        values = {name: str(value)[:_LONGEST] for name, value in run.settings.items()}
        known = entity.data.params
        client.log_batch(self._id, params=[Param(name, value) for name, value in values.items() if name not in known])
        for name, value in values.items():
            if known.get(name, value) != value:
                client.set_tag(self._id, f"now.{name}", value)
        client.update_run(self._id, "RUNNING")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log figures as metrics of `step`."""
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[Metric(name, float(value), now, step) for name, value in values.items()])

    def event(self, step: int, text: str) -> None:
        """Set a tag of the step; a later event of the same step replaces it."""
        self._client.set_tag(self._id, f"event.{step:08d}", text[:_LONGEST])

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Log the numbers of the summary as metrics and its texts as tags, and end the run of MLflow."""
        from mlflow.entities import Metric, RunTag

        if summary is None:
            if not self._evaluates:
                self._client.set_terminated(self._id, "FAILED")
            return
        now, step = int(1000 * time.time()), int(summary["steps"])
        numbers = {name: value for name, value in summary.items() if isinstance(value, (int, float))}
        metrics = [Metric(f"run/{name}", float(value), now, step) for name, value in numbers.items()]
        tags = [RunTag(f"run.{name}", str(value)) for name, value in summary.items() if name not in numbers]
        self._client.log_batch(self._id, metrics=metrics, tags=tags)
        self._client.set_terminated(self._id, _ENDS.get(summary["exit_code"], "FAILED"))


def _experiment(client: Any) -> str:
    """Return the id of the experiment, which is created if it does not exist."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found is not None else client.create_experiment(name))
