"""Lines at the end of a run: steps, bytes, seconds, the path of the weights, and a command to run next."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
from pathlib import Path
from typing import Any

from psnode.config import Config
from psnode.config.amounts import amount, counted, duration, milliseconds
from psnode.config.names import PASSED
from psnode.errors import PsnodeError
from psnode.master.job_state import PART
from psnode.master.lines.columns import tell
from psnode.records import checkpoint
from psnode.records.directory import RunDirectory
from psnode.records.metrics import EVALUATIONS, Summary, read_records
from psnode.records.retention import best_evaluation
from psnode.transport.mpi.environment import place

_LOG = logging.getLogger(__name__)
_NAMES = {"SIGINT": "Ctrl-C", "interrupted": "Ctrl-C"}


def tell_of_the_stop(reason: str) -> None:
    """Log that a stop was requested."""
    name = _NAMES.get(reason, f"asked to stop by {reason}")
    again = "; again: end at once" if name == "Ctrl-C" else ""
    _LOG.info("%s: finishing this step and its checkpoint%s", name, again)


def tell_of_the_result(run: RunDirectory, summary: Summary, workers: int, last: int, asked: str | None) -> None:
    """Log the result of the run.

    `last`: the step at which this job ends unless it is stopped. `asked`: the reason of a request to stop, or None.
    """
    config, directory = run.config, run.config.directory
    rows = [("stopped" if summary.exit_code else "done", _done(run, summary, last, asked))]
    sent = summary.uplink_bytes + summary.downlink_bytes
    if (ratio := summary.compression_ratio) is not None:
        times = f"{ratio:.1f} times less than float32" if ratio >= 1 else "more than float32: the headers of small frames"
        rows.append(("sent", f"{amount(sent)} instead of {amount(ratio * sent)}: {times}"))
        if 10 * (control := summary.uplink_control_bytes + summary.downlink_control_bytes) > sent:
            rows.append(("beside it", f"{amount(control)} of reports and other control messages"))
    if (found := summary.prediction) is not None:
        predicted = f"{milliseconds(found['step'])} were predicted ({found['source']})"
        rows.append(("a step", f"{milliseconds(found['measured'])}, {100 * found['off']:+.0f} %: {predicted}"))
    evaluated = _evaluated(run.path, summary.steps)
    if evaluated is not None:
        rows.append(("evaluated", _result(evaluated)))
        with contextlib.suppress(PsnodeError, OSError):
            rows += _best(run)
    newest = None
    with contextlib.suppress(PsnodeError):
        newest = checkpoint.latest(run.path)
    if newest is not None:
        rows.append(("weights", str(directory / checkpoint.CHECKPOINTS / newest.name / checkpoint.MODEL)))
    if command := _next(config, summary, workers, evaluated=evaluated is not None):
        rows.append(("next", command))
    tell(_LOG, rows)


def _done(run: RunDirectory, summary: Summary, last: int, asked: str | None) -> str:
    before = run.resume_point.step
    steps = summary.steps - before
    if not steps and not summary.exit_code:
        raised = "--stop-after" if summary.stop_reason == PART else "--max-steps or --epochs"
        return f"nothing: it had its {counted(before, 'step')}; raise {raised}"
    loss = "" if summary.final_loss is None else f"; loss {summary.final_loss:.4f}"
    if summary.exit_code:
        reason = asked if summary.stop_reason == "signal" and asked else summary.stop_reason
        why = _NAMES.get(reason, reason)
        return f"by {why} after step {summary.steps:,} of {last:,}{loss}"
    if before:
        return f"{counted(steps, 'step')} of {summary.steps:,}; {duration(summary.seconds)} with those before{loss}"
    return f"{counted(steps, 'step')} in {duration(summary.seconds)}{loss}"


def _evaluated(directory: Path, step: int) -> dict[str, Any] | None:
    """Return the newest evaluation of a checkpoint up to `step`, or None without an evaluation."""
    try:
        found = [record for record in read_records(directory / EVALUATIONS) if record["step"] <= step]
    except PsnodeError:
        return None
    return found[-1] if found else None


def _best(run: RunDirectory) -> list[tuple[str, str]]:
    """Return one row with the best evaluation and the path of its weights; empty without an evaluation."""
    if (found := best_evaluation(run.path)) is None:
        return []
    path, record = found
    return [("best", f"{_result(record)}; {run.config.directory / checkpoint.CHECKPOINTS / path.name / checkpoint.MODEL}")]


def _result(record: dict[str, Any]) -> str:
    shown = [f"{name} {100 * record[name]:.2f} %" for name in ("top1",) if isinstance(record.get(name), float)]
    loss = [f"loss {record['loss']:.4f}" if isinstance(record.get("loss"), float) else "loss not finite"]
    return f"step {record['step']}: {', '.join([*loss, *shown])}"


def _next(config: Config, summary: Summary, workers: int, *, evaluated: bool) -> str:
    """Return the command to run next.

    Return "" after a complete run of a task that a program passed to psnode.
    """
    complete = not summary.exit_code and summary.stop_reason != PART
    if config.task is not None and config.task.startswith(PASSED):
        return "" if complete else "start the program again with resume=True, or PSNODE_RESUME=true in its environment"
    words = ["--train-dir", str(config.directory)]
    if config.task is not None:
        words += ["--task", os.path.relpath(config.task) if os.sep in config.task else config.task]
    if complete and not evaluated:
        return shlex.join(["psnode", "evaluate", *words])
    more: list[str] = []
    if complete:
        flag, number = ("--max-steps", 2 * summary.steps) if config.max_steps else ("--epochs", 2 * (config.epochs or 10))
        more = [flag, str(number)]
    start = ["psnode", "launch", "-n", str(workers), "--", "train"] if place() else ["psnode", "train"]
    local = [] if config.local is None else ["--local", str(config.local)]
    return shlex.join([*start, *local, "--resume", *more, *words])
