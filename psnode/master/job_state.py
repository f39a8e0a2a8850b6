"""State of a job: its version, and the approach of its end."""

from __future__ import annotations

import math

from psnode.errors import PsnodeError
from psnode.protocol.channel import ENOUGH
from psnode.protocol.round import Round
from psnode.transport.clock import Clock

QUORUM = "quorum"
PART = "stop-after"  # reason in summary.json of a start that ended well before the end of its run


class JobState:
    """`round`: the open one, or the next; `stopping`: no round follows; `stop_reason`: a signal, QUORUM or ENOUGH, if any."""

    def __init__(self, clock: Clock, stop_deadline: float) -> None:
        self.round = Round.after(0)
        self.stopping = False
        self.stop_reason: str | None = None
        self.failure: PsnodeError | None = None  # why too few are left, if an exception of one of them is
        self.stop_by = math.inf  # when who asked the job to stop has waited long enough
        self._clock = clock
        self._stop_deadline = stop_deadline

    @property
    def version(self) -> int:
        """Number of finished updates."""
        return self.round.version

    def request(self, reason: str) -> None:
        """The job is to end after the open round."""
        if reason not in (QUORUM, ENOUGH) and self.stop_by == math.inf:
            self.stop_by = self._clock.now() + self._stop_deadline
        self.stop_reason = self.stop_reason or reason

    def is_over(self, last_step: int) -> bool:
        """True if no round is to follow the version, or was asked to."""
        return self.round.finished >= last_step or self.stop_reason is not None

    @property
    def late(self) -> bool:
        """True if nothing may be waited for any more."""
        return self._clock.now() >= self.stop_by
