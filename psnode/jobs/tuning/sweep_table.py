"""The outcome of a sweep as a table for a terminal or as JSON, with the command of the best trial."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from psnode.jobs.tuning.sweep import TrialOutcome
from psnode.jobs.tuning.trial import Trial


def best_of(outcomes: Sequence[TrialOutcome]) -> TrialOutcome | None:
    """Return the first outcome that has a result, or None. The `outcomes` are sorted, best first."""
    return next((one for one in outcomes if one.result is not None), None)


def command_of(trial: Trial) -> str:
    """Return the shell command of a training with the trial's settings, but without the trial's number of steps.

    It writes to the directory `best`, next to the trial's own directory.
    """
    return shlex.join(["psnode", *trial.command, *trial.options, "--train-dir", str(trial.output / "best")])


def rows(outcomes: Sequence[TrialOutcome]) -> list[dict[str, Any]]:
    """Return one row per trial: its values, state, step and result, and the steps, seconds and bytes of its runs.

    The entry "results" has the result of each seed, and "train_dir" is the directory of the run with the first seed.
    """
    return [
        {
            "values": one.trial.values,
            "state": one.state,
            "result_step": one.steps,
            "result": one.result,
            "standard_error": one.error,
            "results": {str(seed): result for seed, result in zip(one.replicas.seeds, one.results, strict=False)},
            **one.replicas.sent(),
            "train_dir": str(one.replicas.runs[0].directory),
        }
        for one in outcomes
    ]


def as_json(outcomes: Sequence[TrialOutcome], metric: str) -> dict[str, Any]:
    """Return the outcome of the sweep in types that JSON has."""
    best = best_of(outcomes)
    return {"metric": metric, "trials": rows(outcomes), "best": best and command_of(best.trial)}


def show(outcomes: Sequence[TrialOutcome], metric: str) -> None:
    """Print the table, as wide as the terminal or 80 columns, and the command of the best trial."""
    from rich.console import Console
    from rich.table import Table

    titles = [*dict.fromkeys(name for one in outcomes for name in one.trial.values)]
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    spread = any(one.error is not None for one in outcomes)
    for title in (metric, *(["s.e."] if spread else []), "step", "MB sent", "seconds", "state"):
        table.add_column(title, justify="left" if title == "state" else "right", no_wrap=True)
    for one, row in zip(outcomes, rows(outcomes), strict=True):
        result = "" if one.result is None else f"{one.result:.4f}"
        errors = ["" if one.error is None else f"{one.error:.4f}"] if spread else []
        figures = (result, *errors, str(one.steps), f"{row['bytes'] / 1e6:.1f}", f"{row['seconds']:.1f}", one.state)
        table.add_row(*(one.trial.values.get(title, "") for title in titles), *figures)
    console = Console(highlight=False)
    console.print(table)
    best = best_of(outcomes)
    if best is not None:
        console.print(f"\nThe best, {best.trial.name}:\n")
        print(command_of(best.trial))
