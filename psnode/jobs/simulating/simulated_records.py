"""Records of a simulated job in the files of a run, for `psnode runs`, `psnode report` and the checker of histories."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from math import nan
from pathlib import Path
from statistics import fmean
from typing import Any

from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError
from psnode.jobs.simulating.simulated_job import SimulatedJob
from psnode.plans.roles import MASTER
from psnode.records.history import History
from psnode.records.metrics import EVENTS, RunLog, Seconds, StepRecord, Summary, compression_ratio, write_atomically
from psnode.records.timeline import write_timeline

SIMULATION = "simulation.json"
SIMULATED = "simulated"  # stop_reason in summary.json


def links_of(job: SimulatedJob) -> list[dict[str, int]]:
    """Return the bytes of gradients and weights on the link of every rank, the master's first."""
    pairs = zip(job.sent, job.received, strict=True)
    return [{"rank": rank, "sent": sent, "received": received} for rank, (sent, received) in enumerate(pairs)]


def write_records(directory: Path, job: SimulatedJob, coordinates: int, facts: Mapping[str, Any]) -> None:
    """Write metrics.jsonl, history.jsonl, summary.json and simulation.json into a new `directory`.

    events.jsonl is added if there are events, and timeline.json if spans were recorded. `coordinates`: the number of the
    model's coordinates. `facts`: the simulated options; simulation.json contains them, and the bytes on all links. Learning
    rates, epochs, losses and examples are unknown in a simulation, so they are recorded as null. Hashes are empty. No
    config.json is written, so no training can resume from the directory. Raises ConfigurationError unless the directory is
    new or empty.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise ConfigurationError(f"{directory} is not empty: choose another --train-dir")
        write_atomically(directory / SIMULATION, to_json({**facts, "links": links_of(job)}, indent=1).encode() + b"\n")
        if job.events:
            write_atomically(directory / EVENTS, "".join(to_json(event) + "\n" for event in job.events).encode())
        if job.spans:
            write_timeline(directory, job.spans, {rank: _role(rank, job.workers) for rank in range(len(job.sent))})
        with RunLog(directory) as log:
            for record in step_records(job):
                log.write(record)
        with contextlib.closing(History(directory)) as history:
            history.start(0, "", ())
            for version in job.versions:
                history.version(version.number, "", version.added)
        up, down = sum(version.up for version in job.versions), sum(version.down for version in job.versions)
        ratio = compression_ratio(coordinates, job.workers * len(job.versions), up + down)
        reason, seconds = job.stop_reason or SIMULATED, sum(job.step_times)
        Summary(len(job.versions), seconds, None, up, down, ratio, "", reason, 0, coordinates, None).write(directory)
    except OSError as error:
        raise ConfigurationError(f"--train-dir {directory} cannot be written: {error.strerror}; choose another") from error


def _role(rank: int, workers: int) -> str:
    """Return the name that a rank has in the timeline of a real job."""
    if rank == MASTER:
        return "master"
    return f"worker {rank}" if rank <= workers else f"server {rank}"


def step_records(job: SimulatedJob) -> list[StepRecord]:
    """Return a record for each version. Values that are unknown in a simulation are nan or None."""
    return [
        StepRecord(
            step=version.number, epoch=nan, loss=None, lr=nan, workers=job.workers, contributing=len(version.contributors),
            uplink_bytes=version.up, downlink_bytes=version.down, dropped=version.dropped, samples_per_second=nan,
            seconds=Seconds(
                step=seconds,
                forward_backward=fmean([report.passes for report in reports]) if reports else 0.0,
                encode=fmean([report.encode for report in reports]) if reports else 0.0,
                wait=fmean([report.wait for report in reports]) if reports else 0.0,
                decode=version.decode, update=version.update, downlink=0.0,
            ),
            relative_error=None, metrics={},
        )
        for version, reports, seconds in zip(job.versions, job.reports, job.step_times, strict=True)
    ]  # fmt: skip
