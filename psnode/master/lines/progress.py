"""Display of progress on rank 0: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from statistics import median
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from psnode.records.metrics import StepRecord, compression_ratio
from psnode.transport.mpi.environment import moves_on_a_terminal, place

_RECENT = 50  # number of steps in the displayed step time and ratio
_SEPARATOR = "  "
_NARROWEST, _WIDEST = 4, 40  # columns of the bar itself
_TIME = len("00:00:00 ")  # columns of the remaining time, up to 99 hours, and a space


class ProgressView(Protocol):
    """A display or receiver of step records."""

    def write(self, record: StepRecord) -> None:
        """Take the record of a finished step."""

    def extend(self, last: int) -> None:
        """Set the last step of the run to `last`."""

    def close(self) -> None:
        """End the display: no further records come."""


class _Figures:
    """Texts of loss, metrics, step time and compression ratio, in order of importance.

    Step time and ratio are taken over the most recent steps.
    """

    def __init__(self, coordinates: int) -> None:
        self._coordinates = coordinates
        self._seconds: deque[float] = deque(maxlen=_RECENT)
        self._bytes: deque[int] = deque(maxlen=_RECENT)

    def of(self, record: StepRecord) -> list[str]:
        self._seconds.append(record.seconds.step)
        self._bytes.append(record.uplink_bytes + record.downlink_bytes)
        ratio = compression_ratio(self._coordinates, record.workers * len(self._bytes), sum(self._bytes))
        loss = [] if record.loss is None else [f"loss {record.loss:.4f}"]
        return [*loss, *_metrics(record.metrics), f"{1e3 * median(self._seconds):.1f} ms/step", f"ratio {ratio or 0:.1f}"]


def _metrics(metrics: Mapping[str, float]) -> list[str]:
    """Return the task's metrics as texts: top1 in per cent, and top5 only if there is no top1."""
    shown = {name: value for name, value in metrics.items() if name != "top5" or "top1" not in metrics}
    return [f"top1 {100 * value:5.1f} %" if name == "top1" else f"{name} {value:.4g}" for name, value in shown.items()]


class Bar:
    """A rich progress bar, with as many figures as fit into the terminal's width."""

    def __init__(self, console: Console, coordinates: int, first: int, last: int) -> None:
        self._figures = _Figures(coordinates)
        self._bar = BarColumn(_WIDEST)
        columns = (TextColumn("step"), MofNCompleteColumn(), self._bar, TimeRemainingColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=console)
        self._task = self._progress.add_task("", total=last, completed=first)
        self._progress.start()

    def write(self, record: StepRecord) -> None:
        last = int(self._progress.tasks[0].total or 0)
        room = self._progress.console.width - len("step ") - len(f"{last}/{last} ") - _TIME - 1  # 1: the space before the figures
        figures = self._figures.of(record)
        while figures and len(_SEPARATOR.join(figures)) + _NARROWEST + 1 > room:
            figures.pop()
        text = _SEPARATOR.join(figures)
        self._bar.bar_width = max(0, min(_WIDEST, room - len(text) - 1))
        self._progress.update(self._task, completed=record.step, description=text)

    def extend(self, last: int) -> None:
        self._progress.update(self._task, total=last)

    def close(self) -> None:
        self._progress.stop()


class Lines:
    """A plain line after the first step, after every `interval`-th step and after the last step."""

    def __init__(self, coordinates: int, last: int, interval: int) -> None:
        self._figures = _Figures(coordinates)
        self._last = last
        self._interval = interval

    def write(self, record: StepRecord) -> None:
        figures = self._figures.of(record)
        if record.step % self._interval == 0 or record.step in (1, self._last):
            print(_SEPARATOR.join([f"step {record.step}/{self._last}", f"epoch {record.epoch:.2f}", *figures]), flush=True)

    def extend(self, last: int) -> None:
        self._last = last

    def close(self) -> None:
        pass


def progress(coordinates: int, first: int, last: int, interval: int) -> ProgressView:
    """Return a bar if standard output is a terminal, otherwise plain lines."""
    if _watched():
        return Bar(Console(), coordinates, first, last)
    return Lines(coordinates, last, interval)


def _watched() -> bool:
    """Return True if standard output is a terminal that shows output immediately.

    mpirun gives its ranks a terminal even if its own output goes elsewhere. It also delays a bar, since a bar prints no line
    ends.
    """
    return sys.stdout.isatty() and (place() is None or moves_on_a_terminal())


class Fanout:
    """Hands every record to several observers."""

    def __init__(self, *observers: ProgressView) -> None:
        self._observers = observers

    def write(self, record: StepRecord) -> None:
        for observer in self._observers:
            observer.write(record)

    def extend(self, last: int) -> None:
        for observer in self._observers:
            observer.extend(last)

    def close(self) -> None:
        for observer in self._observers:
            observer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
