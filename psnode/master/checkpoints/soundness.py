"""The soundness of versions, judged by their values and by the losses on them; the verdicts go to the checkpoints' manifests."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from statistics import fmean, median

from psnode.master.checkpoints.checkpoint_thread import CheckpointThread
from psnode.master.events import Events
from psnode.records import checkpoint, retention
from psnode.records.directory import RunDirectory

RECENT = 100  # number of usual losses in the median
FACTOR = 10.0
_FLOOR = 0.25  # fraction of the first loss; late in training, one hard example may raise a batch's loss far above the median
_LEAST = 5  # fewest usual losses whose median is used


class Soundness:
    """Judges versions by losses, which are compared with the median of the last 100 usual losses.

    A loss is unusual if it is not finite, or if it is above ten times the median and above a quarter of the run's first loss.
    Unusual losses do not enter the median, so a wrecked model stays unsound however long it is trained. If the median is not
    positive, every finite loss is usual. `losses`: the losses of the steps that the run has taken. Only the master's main
    thread uses this object.
    """

    def __init__(self, losses: Iterable[float] = ()) -> None:
        self._usual = deque[float](maxlen=RECENT)
        self._first = -math.inf
        # by version in ascending order, and by rank: the rank's first loss on this version or a later version
        self._awaited: dict[int, dict[int, float | None]] = {}
        self.doubt = ""  # the evidence against the weights from the newest step's loss
        for loss in losses:
            self.take(0, loss)

    def take(self, step: int, loss: float | None) -> None:
        """Take the loss of the newest step, `step`. None and NaN, which mean that no loss was reported, are ignored."""
        if loss is None or math.isnan(loss):
            return
        self.doubt = self._against(loss, f"of step {step}")
        if not self.doubt:
            if not self._usual:
                self._first = loss
            self._usual.append(loss)

    def await_(self, version: int) -> None:
        """Collect losses on `version`, since its checkpoint will be judged by them."""
        self._awaited[version] = {}

    def hear(self, rank: int, version: int, loss: float | None) -> None:
        """Take the loss that `rank` has computed on `version`. None (no loss was reported) does not affect the verdict."""
        for awaited, losses in self._awaited.items():
            if version >= awaited:
                losses.setdefault(rank, loss)

    def verdicts(self, ranks: Collection[int]) -> Iterator[tuple[int, str]]:
        """Yield a pair for each version on which all of `ranks` have reported: the version, and the evidence against it.

        The evidence is "" if the version is sound. A version gets no verdict if no rank has reported a loss for it.
        """
        for version in [version for version, losses in self._awaited.items() if losses and losses.keys() >= set(ranks)]:
            told = [loss for loss in self._awaited.pop(version).values() if loss is not None]
            if told:
                yield version, self._against(fmean(told), "on it")

    def give_up(self, reason: str) -> Iterator[tuple[int, str]]:
        """Yield all versions that wait for losses, each with `reason`, and stop waiting."""
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
    """Writes verdicts on the soundness of checkpoints into their manifests, and reports each unsound version once.

    The verdicts are written in the checkpoint thread, after the checkpoints themselves.
    """

    def __init__(self, run: RunDirectory, thread: CheckpointThread, events: Events, workers: int) -> None:
        self._run, self._thread, self._events, self._workers = run, thread, events, workers
        self._wrecked = set[int]()  # versions with values that are not finite, which no loss can make sound
        self._told = set[int]()

    def condemn(self, version: int) -> None:
        """Note that the checkpoint of `version` holds values that are not finite. The checkpoint thread calls this."""
        self._wrecked.add(version)

    def judge(self, version: int, reason: str) -> None:
        """Write the verdict on `version`: unsound for `reason`, or sound if `reason` is empty.

        Call this after the checkpoint of `version` is published, queued for publication or abandoned. Nothing is written for an
        abandoned checkpoint.
        """

        def then(judged: str | None, error: Exception | None) -> None:
            if error is not None:
                self._events.tell("not judged", version, None, f"its manifest cannot be written: {error}")
            elif judged:
                self.tell(version, judged)

        self._thread.do(version, lambda: self._judge(version, reason), then)

    def tell(self, version: int, reason: str) -> None:
        """Report that `version` is unsound for `reason`, unless an earlier call has reported this version."""
        if version in self._told:
            return
        self._told.add(version)
        newest = retention.newest_not_unsound(self._run.path)
        step = version if newest is None else checkpoint.step_of(newest)
        where = f"--resume goes on from step {step}" if step != version else "there is no other one yet"
        self._events.tell("unsound", version, None, f"its checkpoint pushes no other one out: {reason}; {where}")

    def _judge(self, version: int, reason: str) -> str | None:
        """Write the verdict into the manifest and return `reason`.

        Return None and write nothing if there is no checkpoint, or if it is already known to hold values that are not
        finite.
        """
        path = self._run.path / checkpoint.CHECKPOINTS / checkpoint.step_directory(version)
        if version in self._wrecked or not path.is_dir():
            return None
        retention.judge(path, reason)
        retention.prune(self._run.path, version, self._run.config.keep_last, self._workers)
        return reason
