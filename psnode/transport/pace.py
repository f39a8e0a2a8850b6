"""How long a polling thread sleeps: MPI moves bytes only inside its calls, and its processes share few cores."""

from __future__ import annotations

IDLE_FIRST = 0.2e-3
IDLE_LAST = 1e-3
IDLE_GROWTH = 1.5
BUSY_SPINS = 25
BUSY_FIRST = 0.05e-3
BUSY_LAST = 0.5e-3
BUSY_GROWTH = 2.0
# A call that ran for longer than this has copied some 64 kB: the transfer is worth the core while it lasts.
MOVED_NANOSECONDS = 12_000


class Pace:
    """Seconds until the next poll, from what the last ones saw.

    Nothing under way: IDLE_FIRST rising to IDLE_LAST. Transfers under way: at once while bytes come fast and for
    BUSY_SPINS polls after that, then BUSY_FIRST rising to BUSY_LAST. A slow link so costs few polls, since the
    socket's buffers hold more than it delivers in BUSY_LAST (62 kB at 1 Gbit/s), a fast one gets the core.
    """

    def __init__(self) -> None:
        self._idle = IDLE_FIRST
        self._busy = BUSY_FIRST
        self._spins = 0

    def next(self, moved: bool, busy: bool) -> float:
        """`moved`: the last poll got something done; `busy`: transfers are under way."""
        if moved:
            self._idle, self._busy, self._spins = IDLE_FIRST, BUSY_FIRST, 0
            return 0.0
        if not busy:
            seconds, self._idle = self._idle, min(IDLE_LAST, self._idle * IDLE_GROWTH)
            return seconds
        if self._spins < BUSY_SPINS:
            self._spins += 1
            return 0.0
        seconds, self._busy = self._busy, min(BUSY_LAST, self._busy * BUSY_GROWTH)
        return seconds
