"""Soundness of a version of the weights, by its values and by the losses on it; verdicts in the manifests of its checkpoints."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from statistics import fmean, median

from psnode.master.checkpoints.checkpoint_thread import CheckpointThread
from psnode.master.events import Events
from psnode.records import checkpoint, retention
from psnode.records.directory import RunDirectory

RECENT = 100  # steps
FACTOR = 10.0
_FLOOR = 0.25  # of the run's first loss: late in training one hard example makes a batch's loss many times the median
_LEAST = 5  # losses that make a median worth comparing with


class Soundness:
    """Compares losses with the median of the last 100 usual ones.

    `losses`: those of the steps that the run has taken. A loss above ten times the median, and above a quarter of the first, is
    not usual, and none that others are compared with: a wrecked model stays one however long it is trained. Where the median
    is not positive nothing is said of finite losses. For the master's main thread.
    """

    def __init__(self, losses: Iterable[float] = ()) -> None:
        self._usual = deque[float](maxlen=RECENT)
        self._first = -math.inf
        # by version, ascending: of every rank, its first loss on it or a later
        self._awaited: dict[int, dict[int, float | None]] = {}
        self.doubt = ""  # the evidence of the newest step's loss against the weights
        for loss in losses:
            self.take(0, loss)

    def take(self, step: int, loss: float | None) -> None:
        """The loss of `step`, the newest, is known; None or NaN: no worker has told one."""
        if loss is None or math.isnan(loss):
            return
        self.doubt = self._against(loss, f"of step {step}")
        if not self.doubt:
            if not self._usual:
                self._first = loss
            self._usual.append(loss)

    def await_(self, version: int) -> None:
        """There is to be a checkpoint of `version`: the losses on it decide."""
        self._awaited[version] = {}

    def hear(self, rank: int, version: int, loss: float | None) -> None:
        """`rank` has computed `loss` on `version`; None: it does not tell, and decides nothing."""
        for awaited, losses in self._awaited.items():
            if version >= awaited:
                losses.setdefault(rank, loss)

    def verdicts(self, ranks: Collection[int]) -> Iterator[tuple[int, str]]:
        """The versions of which all of `ranks` have a loss by now, each with the evidence against it, if any."""
        for version in [version for version, losses in self._awaited.items() if losses and losses.keys() >= set(ranks)]:
            told = [loss for loss in self._awaited.pop(version).values() if loss is not None]
            if told:
                yield version, self._against(fmean(told), "on it")

    def give_up(self, reason: str) -> Iterator[tuple[int, str]]:
        """All versions that wait for losses, each with `reason`: there will be none."""
        versions, self._awaited = list(self._awaited), {}
        yield from ((version, reason) for version in versions)

    def _against(self, loss: float, which: str) -> str:
        if not math.isfinite(loss):
            return f"the loss {which} is {loss}"
        if len(self._usual) < _LEAST or not (usual := median(self._usual)) > 0 or loss <= FACTOR * usual:
            return ""
        if loss <= _FLOOR * self._first:
            return ""
        steps = len(self._usual)
        return f"the loss {which}, {loss:.4g}, is above {FACTOR:g} times {usual:.4g}, the median of the last {steps} steps"


class Verdicts:
    """Writes verdicts in the thread that publishes, after the checkpoints themselves, and tells each unsound version once."""

    def __init__(self, run: RunDirectory, thread: CheckpointThread, events: Events, workers: int) -> None:
        self._run, self._thread, self._events, self._workers = run, thread, events, workers
        self._wrecked = set[int]()  # versions with values that are not finite: no loss makes them sound
        self._told = set[int]()

    def condemn(self, version: int) -> None:
        """Note that the checkpoint of `version` holds values that are not finite. Called in the thread."""
        self._wrecked.add(version)

    def judge(self, version: int, reason: str) -> None:
        """The losses on `version`, which is published or about to be, are known: it is sound, or unsound for a `reason`."""

        def then(judged: str | None, error: Exception | None) -> None:
            if error is not None:
                self._events.tell("not judged", version, None, f"its manifest cannot be written: {error}")
            elif judged:
                self.tell(version, judged)

        self._thread.do(version, lambda: self._judge(version, reason), then)

    def tell(self, version: int, reason: str) -> None:
        """One line a version, whatever else is found out about it."""
        if version in self._told:
            return
        self._told.add(version)
        newest = retention.newest_not_unsound(self._run.path)
        step = version if newest is None else checkpoint.step_of(newest)
        where = f"--resume goes on from step {step}" if step != version else "there is no other one yet"
        self._events.tell("unsound", version, None, f"its checkpoint pushes no other one out: {reason}; {where}")

    def _judge(self, version: int, reason: str) -> str | None:
        """Write the verdict into the manifest; None if there is none to write it into."""
        path = self._run.path / checkpoint.CHECKPOINTS / checkpoint.step_directory(version)
        if version in self._wrecked or not path.is_dir():
            return None
        retention.judge(path, reason)
        retention.prune(self._run.path, version, self._run.config.keep_last, self._workers)
        return reason
