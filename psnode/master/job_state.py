"""The state of a job: its version, and requests to end it."""

from __future__ import annotations

import math

from psnode.config.job_folder import asked_signal
from psnode.errors import PsnodeError
from psnode.protocol.channel import ENOUGH
from psnode.protocol.messages import plain
from psnode.protocol.round import Round
from psnode.protocol.wire import Frame
from psnode.transport.clock import Clock

QUORUM = "quorum"
PART = "stop-after"  # reason in summary.json if the job ended successfully before its run was complete


def stop_reason_of(frame: Frame) -> str:
    """Return the reason in a worker's STOP_REQUEST: ENOUGH, or the name of the signal that requested the stop.

    If the launcher has received a signal, a worker on another host knows only the USR1 that the launcher then sends to all
    ranks. In this case the name is that of the launcher's signal if the launcher runs on this host, otherwise USR1.
    """
    return asked_signal(plain(bytes(frame.body).decode("ascii", "replace")))


class JobState:
    """The version of a job and requests to end it.

    `round`: the open round, or the next round if no round is open. `stopping`: True if no further round is opened. `stop_reason`:
    the name of a signal, QUORUM, ENOUGH, or None.
    """

    def __init__(self, clock: Clock, stop_deadline: float) -> None:
        self.round = Round.after(0)
        self.stopping = False
        self.stop_reason: str | None = None
        self.failure: PsnodeError | None = None  # the exception of a worker, if it ended the job
        self.stop_by = math.inf  # time by which a requested stop should be complete
        self._clock = clock
        self._stop_deadline = stop_deadline

    @property
    def version(self) -> int:
        """Number of finished updates."""
        return self.round.version

    def request(self, reason: str) -> None:
        """Request the end of the job after the open round. The first `reason` is kept."""
        if reason not in (QUORUM, ENOUGH) and self.stop_by == math.inf:
            self.stop_by = self._clock.now() + self._stop_deadline
        self.stop_reason = self.stop_reason or reason

    def is_over(self, last_step: int) -> bool:
        """Return True if the last step is reached or a stop was requested, so that no further round is opened."""
        return self.round.finished >= last_step or self.stop_reason is not None

    @property
    def late(self) -> bool:
        """True if the deadline of a requested stop has passed."""
        return self._clock.now() >= self.stop_by
