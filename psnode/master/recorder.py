"""Assembly of the record of a step, one line of metrics.jsonl, from reports, byte counts and times."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from psnode.master.link_bytes import LinkBytes
from psnode.protocol.channel import ControlBytes
from psnode.protocol.messages import Report
from psnode.records.metrics import Seconds, StepRecord

_MOST_REPORTS = 64  # maximum number of a worker's reports that wait for the versions with its gradients


@dataclass
class _RoundFigures:
    lr: float = 0.0
    epoch: float = 0.0
    closed: float | None = None  # time.perf_counter() when the last group closed
    gradient_norm: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    contributors: frozenset[tuple[int, int]] = frozenset()  # (rank, that rank's step)
    dropped: int = 0
    up: int = 0
    down: int = 0
    excused: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)


class StepRecorder:
    """Collects the figures of each round, and makes a record once the round is closed and its reports have come.

    The figures of a round are kept under the round's last step. `step`: the number of steps finished before the first round.
    `steps`: the steps in a round. `weighted`: the loss in a record is the mean over samples, not over workers. `control`:
    returns the bytes of all control messages so far. `links`: the account of bytes by rank.

    The next record includes the bytes of group frames that belong to no pending step, and the control messages since the
    previous record. So each byte counted before the last record is in one of the records.
    """

    def __init__(
        self,
        workers: int,
        steps_per_epoch: int,
        step: int,
        epoch_offset: int = 0,
        *,
        steps: int = 1,
        weighted: bool = False,
        control: Callable[[], ControlBytes] = lambda: ControlBytes(0, 0),
        links: LinkBytes | None = None,
    ) -> None:
        self.links = links or LinkBytes()
        self._workers = workers
        self._control = control
        self._booked = ControlBytes(0, 0)
        self._weighted = weighted
        self._steps_per_epoch = steps_per_epoch
        self._epoch_offset = epoch_offset
        self._rounds: dict[int, _RoundFigures] = defaultdict(_RoundFigures)
        self._elsewhere = _RoundFigures()
        self._first = step
        self._steps = steps
        self._next = step + steps
        self._last_close = time.perf_counter()
        self._lost: frozenset[int] = frozenset()
        self._reports: dict[int, dict[int, Report]] = defaultdict(dict)  # by rank, and by the rank's own step
        self._loss: float | None = None
        self.worker_memory = 0  # largest peak memory that a worker has reported, in bytes
        self.first = (0, 0)  # bytes up and down in the frames of the first step, set when its record is made

    def begin(self) -> None:
        """Begin to measure the time of the first round."""
        self._last_close = time.perf_counter()

    def count_epochs(self, steps: int, epoch_offset: int) -> None:
        """Set the steps of an epoch and the offset that is added to a step's number (see `epoch`)."""
        self._steps_per_epoch, self._epoch_offset = steps, epoch_offset

    def epoch(self, step: int) -> float:
        """Return the number of epochs finished after `step`, including the finished fraction of the present epoch."""
        return (step + self._epoch_offset) / self._steps_per_epoch

    def up(self, nbytes: int, step: int | None = None) -> None:
        """Count the bytes of gradient frames that their sender has reported for `step`."""
        (self._elsewhere if step is None or step < self._next else self._rounds[step]).up += nbytes

    def down(self, nbytes: int, step: int | None = None) -> None:
        """Count the bytes of weight frames sent in the round of `step`."""
        (self._elsewhere if step is None or step < self._next else self._rounds[step]).down += nbytes

    def dropped(self, step: int) -> None:
        """Count in the round of `step` a gradient frame that was not used: late, duplicate, refused or left out."""
        self._rounds[step].dropped += 1

    def skipped(self, step: int, rank: int) -> None:
        """Note that `rank` leaves out its gradient of `step`.

        The record of `step` still waits for the rank's report, which counts the bytes that the rank has sent.
        """
        if step >= self._next:
            self._rounds[step].skipped.add(rank)

    def report(self, step: int, rank: int, report: Report) -> None:
        """Store the report of `rank` about `step`, the rank's own step."""
        reports = self._reports[rank]
        reports[step] = report
        self.worker_memory = max(self.worker_memory, report.memory)
        if len(reports) > _MOST_REPORTS:
            del reports[min(reports)]

    def excuse(self, rank: int, last: int) -> None:
        """Stop waiting for reports of `rank` about the steps up to `last`, since these reports may never come."""
        for step in range(self._next, last + 1, self._steps):
            self._rounds[step].excused.add(rank)

    def lost(self, rank: int) -> None:
        """Stop waiting for reports of `rank`."""
        self._lost |= {rank}

    def found(self, rank: int) -> None:
        """Wait for reports of `rank` again, since it takes part in the coming rounds."""
        self._lost -= {rank}

    def close(
        self,
        step: int,
        lr: float,
        contributors: Iterable[tuple[int, int]],
        seconds: dict[str, float],
        gradient_norm: float | None = None,
    ) -> None:
        """Close the round of `step`.

        `contributors`: the gradients in its version, as pairs of a rank and the rank's own step.
        """
        entry = self._rounds[step]
        entry.lr, entry.contributors, entry.seconds = lr, frozenset(contributors), seconds
        entry.gradient_norm = gradient_norm
        entry.epoch = self.epoch(step)
        entry.closed = time.perf_counter()

    def due(self) -> Iterator[StepRecord]:
        """Yield the complete records in order.

        A record waits for its reports only while at most 64 rounds are pending, since a worker's report may never come.
        """
        while (entry := self._rounds.get(self._next)) and entry.closed:
            if self._missing(self._next, entry) and len(self._rounds) <= _MOST_REPORTS:
                return
            yield self._record(self._next, self._rounds.pop(self._next))
            self._next += self._steps

    def _missing(self, number: int, entry: _RoundFigures) -> bool:
        silent = self._lost | entry.excused
        own = [(rank, step) for rank, step in entry.contributors if step > self._first]  # others: reported to an earlier start
        own += [(rank, number) for rank in entry.skipped]
        return any(rank not in silent and step not in self._reports[rank] for rank, step in own)

    def _record(self, step: int, entry: _RoundFigures) -> StepRecord:
        found = [self._reports[rank].get(own) for rank, own in sorted(entry.contributors)]
        reports = [report for report in found if report is not None]
        self._loss = self._mean_loss(reports)
        samples = sum(report.samples for report in reports)
        seconds = (entry.closed or 0.0) - self._last_close
        self._last_close = entry.closed or 0.0
        spare, self._elsewhere = self._elsewhere, _RoundFigures()
        booked, self._booked = self._booked, self._control()
        self.first = self.first if any(self.first) else (entry.up, entry.down)
        errors = [report.relative_error for report in reports if report.relative_error is not None]
        return StepRecord(
            step=step,
            epoch=entry.epoch,
            loss=self._loss,
            lr=entry.lr,
            workers=self._workers,
            contributing=len({rank for rank, _ in entry.contributors}),
            uplink_bytes=entry.up + spare.up,
            downlink_bytes=entry.down + spare.down,
            dropped=entry.dropped,
            samples_per_second=samples / seconds if seconds > 0 else 0.0,
            seconds=Seconds(
                step=seconds,
                forward_backward=_mean([report.forward_backward for report in reports]),
                encode=_mean([report.encode for report in reports]),
                wait=_mean([report.wait for report in reports]),
                decode=entry.seconds.get("decode", 0.0),
                update=entry.seconds.get("update", 0.0),
                downlink=entry.seconds.get("downlink", 0.0),
            ),
            relative_error=fmean(errors) if errors else None,
            metrics={
                name: sum(report.metrics.get(name, 0.0) for report in reports) / max(samples, 1)
                for name in sorted({name for report in reports for name in report.metrics})
            },
            gradient_norm=entry.gradient_norm,
            uplink_control_bytes=self._booked.received - booked.received,
            downlink_control_bytes=self._booked.sent - booked.sent,
        )

    def _mean_loss(self, reports: Sequence[Report]) -> float | None:
        """Return the mean of the reported losses, with the same weights as in the mean gradient.

        If no report has a loss, return the loss of the previous record.
        """
        told = [(report.loss, report.samples if self._weighted else 1) for report in reports if report.loss is not None]
        if not sum(weight for _, weight in told):
            return self._loss
        return fmean([loss for loss, _ in told], [weight for _, weight in told])


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
