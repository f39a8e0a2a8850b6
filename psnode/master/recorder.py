"""Assembles the record of a step, a line of metrics.jsonl, from reports, bytes and clocks."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from psnode.protocol.channel import ControlBytes
from psnode.protocol.messages import Report
from psnode.records.metrics import Seconds, StepRecord

_MOST_REPORTS = 64  # of a worker, kept until the versions that they count in are finished


@dataclass
class _Round:
    lr: float = 0.0
    epoch: float = 0.0
    closed: float | None = None  # perf_counter when its last group closed
    gradient_norm: float | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    contributors: frozenset[tuple[int, int]] = frozenset()  # (rank, step of its own)
    dropped: int = 0
    up: int = 0
    down: int = 0
    excused: set[int] = field(default_factory=set)
    skipped: set[int] = field(default_factory=set)


class StepRecorder:
    """Collects the figures of each step; a step's record is due once its round is closed and all reports are in.

    Group frames that belong to no step count in the next record that is made, and so do the control messages since the record
    before, whose sums `control` tells: over all records no byte is lost. `weighted`: a record's loss is the mean over samples,
    not over workers.
    """

    def __init__(
        self,
        workers: int,
        steps_per_epoch: int,
        step: int,
        epoch_offset: int = 0,
        *,
        weighted: bool = False,
        control: Callable[[], ControlBytes] = lambda: ControlBytes(0, 0),
    ) -> None:
        self._workers = workers
        self._control = control
        self._booked = ControlBytes(0, 0)
        self._weighted = weighted
        self._steps_per_epoch = steps_per_epoch
        self._epoch_offset = epoch_offset
        self._rounds: dict[int, _Round] = defaultdict(_Round)
        self._elsewhere = _Round()
        self._first = step
        self._next = step + 1
        self._last_close = time.perf_counter()
        self._lost: frozenset[int] = frozenset()
        self._reports: dict[int, dict[int, Report]] = defaultdict(dict)  # by rank and its step
        self._loss: float | None = None
        self.worker_memory = 0  # the most that a worker has told
        self.first = (0, 0)  # bytes up and down of the first step's own frames, once its record is made

    def begin(self) -> None:
        """The first round is about to be opened: its time is counted from here."""
        self._last_close = time.perf_counter()

    def count_epochs(self, steps: int, epoch_offset: int) -> None:
        """An epoch now has `steps` steps, counted from `epoch_offset`."""
        self._steps_per_epoch, self._epoch_offset = steps, epoch_offset

    def epoch(self, step: int) -> float:
        """Number of finished epochs after `step`."""
        return (step + self._epoch_offset) / self._steps_per_epoch

    def up(self, nbytes: int, step: int | None = None) -> None:
        """Count the frames of gradients that their sender has reported."""
        (self._elsewhere if step is None or step < self._next else self._rounds[step]).up += nbytes

    def down(self, nbytes: int, step: int | None = None) -> None:
        """Count frames of weights that were sent."""
        (self._elsewhere if step is None or step < self._next else self._rounds[step]).down += nbytes

    def dropped(self, step: int) -> None:
        """Count a gradient frame that was not used in the round of `step`: late, twice, refused or left out."""
        self._rounds[step].dropped += 1

    def skipped(self, step: int, rank: int) -> None:
        """`rank` leaves its gradient of `step` out: the bytes of it that were sent are in its report, which is still to come."""
        if step >= self._next:
            self._rounds[step].skipped.add(rank)

    def report(self, step: int, rank: int, report: Report) -> None:
        """Take a worker's report about its own `step`."""
        reports = self._reports[rank]
        reports[step] = report
        self.worker_memory = max(self.worker_memory, report.memory)
        if len(reports) > _MOST_REPORTS:
            del reports[min(reports)]

    def excuse(self, rank: int, last: int) -> None:
        """Reports of `rank` about steps up to `last` may never come: no record waits for them."""
        for step in range(self._next, last + 1):
            self._rounds[step].excused.add(rank)

    def lost(self, rank: int) -> None:
        """No record waits for reports of `rank` any more."""
        self._lost |= {rank}

    def found(self, rank: int) -> None:
        """`rank` is back."""
        self._lost -= {rank}

    def close(
        self,
        step: int,
        lr: float,
        contributors: Iterable[tuple[int, int]],
        seconds: dict[str, float],
        gradient_norm: float | None = None,
    ) -> None:
        """The round of `step` is closed, with gradients of `contributors`: ranks, and which of their steps."""
        entry = self._rounds[step]
        entry.lr, entry.contributors, entry.seconds = lr, frozenset(contributors), seconds
        entry.gradient_norm = gradient_norm
        entry.epoch = self.epoch(step)
        entry.closed = time.perf_counter()

    def due(self) -> Iterator[StepRecord]:
        """The records that are complete, in order; where rounds go on without a worker's report, not all wait for it for ever."""
        while (entry := self._rounds.get(self._next)) and entry.closed:
            if self._missing(self._next, entry) and len(self._rounds) <= _MOST_REPORTS:
                return
            yield self._record(self._next, self._rounds.pop(self._next))
            self._next += 1

    def _missing(self, number: int, entry: _Round) -> bool:
        silent = self._lost | entry.excused
        own = [(rank, step) for rank, step in entry.contributors if step > self._first]  # others were reported before the start
        own += [(rank, number) for rank in entry.skipped]
        return any(rank not in silent and step not in self._reports[rank] for rank, step in own)

    def _record(self, step: int, entry: _Round) -> StepRecord:
        found = [self._reports[rank].get(own) for rank, own in sorted(entry.contributors)]
        reports = [report for report in found if report is not None]
        self._loss = self._mean_loss(reports)
        samples = sum(report.samples for report in reports)
        seconds = (entry.closed or 0.0) - self._last_close
        self._last_close = entry.closed or 0.0
        spare, self._elsewhere = self._elsewhere, _Round()
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
        """The mean of the losses that were told, as gradients count in theirs; else the last one known."""
        told = [(report.loss, report.samples if self._weighted else 1) for report in reports if report.loss is not None]
        if not sum(weight for _, weight in told):
            return self._loss
        return fmean([loss for loss, _ in told], [weight for _, weight in told])


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
