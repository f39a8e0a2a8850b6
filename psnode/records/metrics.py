"""Records of a run: metrics.jsonl and summary.json.

psnode.master.recorder assembles the record of a step. Rank 0 writes one line per finished update. Readers may follow the file
while it grows.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from psnode.config.files import RECORD_BYTES, open_plain, parse_json, require_plain
from psnode.config.plain_json import to_json
from psnode.errors import CheckpointError
from psnode.records.journal import Journal

METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
EVENTS = "events.jsonl"
EVALUATIONS = "evaluations.jsonl"
EMA_EVALUATIONS = "evaluations-ema.jsonl"


@dataclass(frozen=True)
class Seconds:
    """Duration of a step and its parts, in seconds.

    `forward_backward`, `encode` and `wait` are means over the contributing workers.
    """

    step: float
    forward_backward: float
    encode: float
    wait: float
    decode: float
    update: float
    downlink: float


@dataclass(frozen=True)
class StepRecord:
    """Record of one finished update.

    Bytes are totals of the whole job, frame headers included; `loss` is None if unknown. `uplink_bytes` and `downlink_bytes`
    count gradients and weights, and are the same in identical runs. Control messages are counted separately, because they contain
    measured times as text, so their lengths vary.
    """

    step: int
    epoch: float
    loss: float | None
    lr: float
    workers: int
    contributing: int
    uplink_bytes: int
    downlink_bytes: int
    dropped: int
    samples_per_second: float
    seconds: Seconds
    relative_error: float | None
    metrics: dict[str, float]
    gradient_norm: float | None = None  # of the mean gradient, before --clip-grad-norm
    uplink_control_bytes: int = 0
    downlink_control_bytes: int = 0


@dataclass(frozen=True)
class Summary:
    """Summary of a run. Bytes and seconds are totals over all parts of the run, including those before a resume."""

    steps: int
    seconds: float
    final_loss: float | None
    uplink_bytes: int
    downlink_bytes: int
    compression_ratio: float | None
    model_hash: str
    stop_reason: str
    exit_code: int
    coordinates: int
    peak_memory_bytes: int | None  # resident memory of the master
    worker_peak_memory_bytes: int | None = None  # of the worker with the highest peak; None if no worker reported its peak
    uplink_control_bytes: int = 0
    downlink_control_bytes: int = 0
    prediction: dict[str, Any] | None = None  # of a step in seconds, with the median of the last part of the run
    link_bytes: dict[str, Any] | None = None  # by rank and direction, in the last part of the run; see psnode.master.link_bytes

    def write(self, directory: Path) -> None:
        """Write summary.json into `directory` atomically."""
        write_atomically(directory / SUMMARY, to_json(asdict(self), indent=2).encode() + b"\n")


def peak_memory() -> int | None:
    """Return the highest resident memory of this process so far, in bytes; None if the system does not report it."""
    return _memory("VmHWM:")


def resident_memory() -> int | None:
    """Return the resident memory of this process, in bytes; None if the system does not report it."""
    return _memory("VmRSS:")


def _memory(line_of: str) -> int | None:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    # unlike the peak that getrusage reports, this peak does not include the parent process
    found = [line.split()[1] for line in status.splitlines() if line.startswith(line_of)]
    return 1024 * int(found[0]) if found else None


def compression_ratio(coordinates: int, worker_steps: int, total_bytes: int) -> float | None:
    """Return the ratio of uncompressed bytes to the bytes sent, `total_bytes`; None if no bytes were sent.

    `worker_steps`: the sum of each step's number of workers. Without compression, a step of one worker would take 8 bytes
    per coordinate: a float32 gradient up, and a float32 weight down.
    """
    return 8 * coordinates * worker_steps / total_bytes if total_bytes else None


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the content of `path` so that readers see either the old or the new content, even after a crash.

    Raises OSError on failure. The old content then remains, unless only the directory could not be flushed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)  # remove the file of a killed process; a link of that name is not followed
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)


def fsync_directory(directory: Path) -> None:
    """Flush `directory` to disk, so that renames in it survive a crash."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records in a JSON-lines file; an incomplete last line is left out. Raises CheckpointError for an invalid line."""
    try:
        require_plain(path)
        file = open_plain(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        for number in itertools.count(1):
            line = file.readline(RECORD_BYTES)
            if len(line) == RECORD_BYTES:
                raise CheckpointError(f"line {number} of {path} is not a record (it is larger than {RECORD_BYTES} bytes)")
            if not line.endswith(b"\n"):
                return
            yield _record(line, path, number)


def _record(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = parse_json(line)
        if not isinstance(record, dict) or not isinstance(record["step"], int):
            raise ValueError("it has no step")
        return record
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"line {number} of {path} is not a record ({error}): take that line out") from error


@dataclass(frozen=True)
class Totals:
    """Totals of bytes and seconds over the run's steps up to `steps`.

    `worker_steps` is the sum of each step's number of workers. Records of earlier versions of psnode count control messages
    in `uplink_bytes` and `downlink_bytes`.
    """

    steps: int = 0
    worker_steps: int = 0
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    seconds: float = 0.0
    uplink_control_bytes: int = 0
    downlink_control_bytes: int = 0


def totals(path: Path, step: int) -> Totals:
    """Return the totals up to and including `step`. Raises CheckpointError for a line that is not the record of a step."""
    found = Totals()
    for record in read_records(path):
        if record["step"] > step:
            break
        try:
            found = Totals(
                record["step"],
                found.worker_steps + record["workers"],
                found.uplink_bytes + record["uplink_bytes"],
                found.downlink_bytes + record["downlink_bytes"],
                found.seconds + record["seconds"]["step"],
                found.uplink_control_bytes + record.get("uplink_control_bytes", 0),
                found.downlink_control_bytes + record.get("downlink_control_bytes", 0),
            )
        except (KeyError, TypeError) as error:
            problem = f"the record of step {record['step']} in {path} is damaged ({error})"
            raise CheckpointError(f"{problem}: take that line out") from error
    return found


def step_seconds(path: Path, first: int, last: int) -> list[float]:
    """Return the durations of the steps from `first` to `last`, in seconds; damaged records are left out."""
    found = []
    for record in read_records(path):
        seconds = record.get("seconds")
        if first <= record["step"] <= last and isinstance(seconds, dict) and isinstance(seconds.get("step"), (int, float)):
            found.append(float(seconds["step"]))
    return found


def losses(path: Path, step: int) -> Iterator[float]:
    """Yield the losses of the run's steps up to `step`, skipping records without a finite loss."""
    for record in itertools.takewhile(lambda record: record["step"] <= step, read_records(path)):
        if isinstance(loss := record.get("loss"), (int, float)) and math.isfinite(loss):
            yield float(loss)


def cut_after(path: Path, step: int) -> None:
    """Remove the records after `step`, and an incomplete last line. Raises CheckpointError for an invalid line up to `step`."""
    if path.exists():
        kept = [to_json(record) for record in itertools.takewhile(lambda record: record["step"] <= step, read_records(path))]
        write_atomically(path, "".join(line + "\n" for line in kept).encode())


class RunLog:
    """Writer of step records to metrics.jsonl.

    Records wait in memory while the disk does not take them (psnode.records.journal).
    """

    def __init__(self, directory: Path) -> None:
        self._journal = Journal(directory / METRICS)

    def write(self, record: StepRecord) -> None:
        """Write one line, which readers see immediately."""
        self._journal.append(to_json(asdict(record)).encode())

    def extend(self, last: int) -> None:
        """Do nothing: a record states its own step, not the end of the run."""

    def close(self) -> None:
        """Flush all records to disk."""
        self._journal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
