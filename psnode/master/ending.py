"""The end of a job on the master: summary.json, the last log lines, and the END message to the workers."""

from __future__ import annotations

import contextlib
import logging
import statistics
from dataclasses import replace
from typing import Any

from psnode.config.amounts import counted
from psnode.errors import ConfigurationError, DeviceError, PsnodeError, StoppedError, TransportError
from psnode.master.job_state import PART, QUORUM
from psnode.master.lines.closing import tell_of_the_result
from psnode.master.loop import Master
from psnode.plans.roles import MASTER
from psnode.protocol.channel import ENOUGH, RemoteFailureError
from psnode.protocol.messages import Failure
from psnode.protocol.wire import Kind
from psnode.records.directory import RunDirectory
from psnode.records.metrics import METRICS, Summary, compression_ratio, peak_memory, step_seconds, totals

_LOG = logging.getLogger(__name__)

_COLD, _FEWEST = 2, 5  # number of first steps left out of the comparison with a prediction, and the fewest remaining steps
_REASONS = {3: "quorum", 4: "diverged", 75: "signal", 130: "interrupted"}


def begun_in_vain(run: RunDirectory, error: StoppedError) -> None:
    """Write the summary of a job that was stopped before its first round, so that its directory states why it has no steps."""
    _summary(run, error.step, _REASONS[error.exit_code], error.exit_code, 0).write(run.path)


def rescue(master: Master, error: Exception | SystemExit) -> None:
    """Write a checkpoint of the last complete step if an exception of the program's code, or a bug, on rank 0 ends the job.

    Do nothing if the disk, the network or a worker is at fault, or if weights on workers may change during the writing.
    """
    codes = (PsnodeError.exit_code, ConfigurationError.exit_code)
    own = not isinstance(error, PsnodeError) or (error.exit_code in codes and not isinstance(error, RemoteFailureError))
    if own and not master.shard.is_remote and master.version > master.run.resume_point.step:
        with contextlib.suppress(OSError, PsnodeError):  # the first error is reported
            if (version := master.pending.rescue()) is not None:
                _LOG.warning("the checkpoint of step %d is written: once the cause is mended go on with --resume", version)


def fail(master: Master, error: Exception | SystemExit) -> None:
    """Write the summary of a job that `error` ends, if the disk has room for it."""
    code = error.exit_code if isinstance(error, PsnodeError) else 1
    with contextlib.suppress(OSError):  # e.g. a full disk: the first error is reported
        _summarise(master, master.run, _REASONS.get(code, "failed"), code, hashed=not master.shard.is_remote)
    _tell_of_the_end(master)


def end(master: Master) -> int:
    """Write the summary of the run, dismiss the workers and return the exit code.

    Raises RemoteFailureError if the exception of a worker ended the job.
    """
    code = _exit_code(master)
    if code and (failure := master.job_state.failure) is not None:
        _summarise(master, master.run, "failed", failure.exit_code)
        _tell_of_the_end(master)
        saved = f"the checkpoint of step {master.version} is written: once the cause is mended go on with --resume"
        raise RemoteFailureError(MASTER, Failure(f"{failure}: {saved}", failure.exit_code))
    asked = master.job_state.stop_reason
    whole_run = master.job_state.round.finished >= master.dealing.last_step
    early = (asked == QUORUM and code == 75) or (asked == ENOUGH and code == 0 and not whole_run)
    whole = "completed" if master.dealing.is_whole else PART
    summary = _summarise(master, master.run, str(asked) if early else _REASONS.get(code, whole), code)
    tell_of_the_result(master.run, summary, len(master.workers), master.dealing.last_step, asked)
    _tell_of_the_end(master)
    master.link.send((*master.workers, *master.spares, *master.servers), Kind.END, version=master.version)
    return code


def _tell_of_the_end(master: Master) -> None:
    """Warn at the end of a synchronous run if some of its rounds lacked the gradient of a worker."""
    if master.partial and not master.rule.rounds_go_on:
        rounds, everybody = master.version - master.run.resume_point.step, len(master.workers)
        _LOG.warning(
            "%d of %s lack the gradient of one or more of %s, so that they are of fewer examples: "
            "events.jsonl tells why, and `contributing` in metrics.jsonl how many workers sent one",
            master.partial, counted(rounds, "update"), counted(everybody, "worker"),
        )  # fmt: skip


def _exit_code(master: Master) -> int:
    if master.job_state.round.finished >= master.dealing.last_step or master.job_state.stop_reason in (None, ENOUGH):
        return 0
    return 130 if master.job_state.stop_reason == "SIGINT" else 75


def _summarise(master: Master, run: RunDirectory, reason: str, code: int, *, hashed: bool = True) -> Summary:
    """Write the summary of the run and return it.

    `hashed`: include the hash of the weights. This needs all workers that hold parts of the weights.
    """
    found = _summary(run, master.job_state.round.finished, reason, code, master.plan.size)
    memory = master.recorder.worker_memory or None
    try:
        digest = master.shard.digest() if hashed else ""
    except (DeviceError, TransportError):  # the device or a worker that holds weights has failed
        digest = ""
    prediction = _prediction(run, master.job_state.round.finished, len(master.workers))
    links = master.recorder.links.facts(master.job_state.round.finished - run.resume_point.step)
    found = replace(
        found, final_loss=master.books.final_loss, model_hash=digest, worker_peak_memory_bytes=memory, prediction=prediction,
        link_bytes=links,
    )  # fmt: skip
    found.write(run.path)
    return found


def _prediction(run: RunDirectory, steps: int, workers: int) -> dict[str, Any] | None:
    """Return the predicted duration of a step, and the median duration measured since this start of the run.

    Return None if there is no prediction for this number of workers, or if too few steps have been measured.
    """
    predicted = run.prediction
    if predicted is None or predicted.workers != workers:
        return None
    seconds = step_seconds(run.path / METRICS, run.resume_point.step + _COLD + 1, steps)
    return None if len(seconds) < _FEWEST else predicted.beside(statistics.median(seconds))


def _summary(run: RunDirectory, steps: int, reason: str, code: int, coordinates: int) -> Summary:
    """Return a summary without the final loss and the model hash, which are known only after the start-up."""
    sums = totals(run.path / METRICS, steps)
    return Summary(
        steps=steps,
        seconds=sums.seconds,
        final_loss=None,
        uplink_bytes=sums.uplink_bytes,
        downlink_bytes=sums.downlink_bytes,
        compression_ratio=compression_ratio(coordinates, sums.worker_steps, sums.uplink_bytes + sums.downlink_bytes),
        model_hash="",
        stop_reason=reason,
        exit_code=code,
        coordinates=coordinates,
        peak_memory_bytes=peak_memory(),
        uplink_control_bytes=sums.uplink_control_bytes,
        downlink_control_bytes=sums.downlink_control_bytes,
    )
