"""Evaluations that the program of a session reports. The master records, logs and answers them, and saves the best version."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

from psnode.errors import CheckpointError
from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.protocol.channel import FrameChannel
from psnode.protocol.messages import Evaluated
from psnode.protocol.wire import Flag, Frame, Kind
from psnode.records.evaluations import Best, Evaluation, append
from psnode.records.metrics import EVALUATIONS

_LOG = logging.getLogger(__name__)


class SessionEvaluations:
    """Records the first evaluation of each version in a session, and answers all workers that report evaluations.

    If no earlier evaluation is better, a checkpoint of the evaluated version is begun, unless one was already due. The
    worker waits for the answer, so it still holds the weights that it has evaluated. `scalars` logs figures of a step by
    tag.
    """

    def __init__(
        self,
        link: FrameChannel,
        run: Path,
        pending: PendingCheckpoints,
        scalars: Callable[[int, Mapping[str, float]], None],
    ) -> None:
        self._link, self._run, self._pending, self._scalars = link, run, pending, scalars
        self._newest = (-1, False)  # the version last evaluated, and True if its evaluation is the best so far
        self._waiting: Frame | None = None  # an evaluation whose checkpoint waits for an earlier one

    @cached_property
    def _best(self) -> Best:
        return Best(self._run)

    def hear(self, frame: Frame) -> None:
        """Record the evaluation in `frame` and answer it. If it needs a checkpoint, leave the answer to `settle`.

        Raises WireError if the frame is malformed.
        """
        told, repeated = Evaluated.from_bytes(frame.body, frame.sender), frame.version == self._newest[0]
        if not repeated:
            self._newest = frame.version, self._record(frame.step, told)
        best = self._newest[1]
        if told.saves and best and not repeated:
            if self._waiting is not None:  # an evaluation of an earlier version, and the new one is better
                self._answer(self._waiting, Flag.NONE, best=True)
            self._waiting = frame
        else:
            self._answer(frame, Flag.NONE, best=best)

    def settle(self, until: float) -> None:
        """Begin the checkpoint that an evaluation waits for, and answer the evaluation.

        Do nothing while an earlier checkpoint is being written. `until`: the time by which the worker's part of the
        checkpoint has to arrive, see BegunCheckpoint.
        """
        if (frame := self._waiting) is not None and not self._pending.in_flight:
            self._waiting = None
            begun = self._pending.begin_evaluated(frame.version, frame.sender, until)
            self._answer(frame, Flag.CHECKPOINT if begun else Flag.NONE, best=True)

    def _answer(self, frame: Frame, flags: Flag, *, best: bool) -> None:
        self._link.send(frame.sender, Kind.EVALUATED, bytes([best]), step=frame.step, version=frame.version, flags=flags)

    def _record(self, step: int, told: Evaluated) -> bool:
        result = Evaluation(
            step, told.loss, told.metrics.get("top1"), told.metrics.get("top5"), told.examples or None, told.seconds or None,
            told.metrics,
        )  # fmt: skip
        try:
            best = self._best.take(result)
            append(self._run / EVALUATIONS, result)
        except CheckpointError as error:
            _LOG.warning("the evaluation of step %d is not recorded: %s", step, error)
            return False
        self._scalars(step, {"eval/loss": told.loss, **{f"eval/{name}": value for name, value in told.metrics.items()}})
        _LOG.info("evaluated %s%s", result, ": the best so far" if best else "")
        return best
