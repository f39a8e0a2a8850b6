"""Sleep of a polling thread: MPI moves bytes only inside its calls, and its processes share few cores."""

from __future__ import annotations

from typing import NamedTuple

from psnode.transport.mpi.listening import Woken

IDLE_FIRST = 0.2e-3
IDLE_LAST = 1e-3
IDLE_GROWTH = 1.5
LISTEN = 20e-3
TRUST_FULL = 16
TRUST_ENOUGH = 8
TRUST_LOST_BY_A_MISS = 4
BUSY_SPINS = 8
BUSY_FIRST = 0.05e-3
BUSY_LAST = 0.5e-3
BUSY_GROWTH = 2.0
# A poll that ran for longer than this has copied some 100 kB: the transfer is worth the core while it lasts.
MOVED_NANOSECONDS = 40_000


class Nap(NamedTuple):
    """Sleep for `seconds`; `listening`, a message ends it."""

    seconds: float
    listening: bool = False


class Pace:
    """Decides on the time until the next poll, from the results of the last ones.

    Transfers in progress: poll at once while bytes come fast and for BUSY_SPINS polls after that, then BUSY_FIRST rising to
    BUSY_LAST. So a slow link costs few polls, since the sockets' buffers hold more than it delivers in BUSY_LAST (62 kB at 1
    Gbit/s), and a fast one gets the core.

    Idle, without a listener: IDLE_FIRST rising to IDLE_LAST. With a listener: listen, for LISTEN at a time. A sound that is not
    yet a message (a part of one) is given IDLE_FIRST, so that a slow link does not wake the thread for each packet. Messages that
    listening misses, because their network makes no sound, lower the trust in it. Below TRUST_ENOUGH, sleeps are as long as
    without a listener, though the longest are spent listening, and a sound raises the trust.
    """

    def __init__(self, ears: bool) -> None:
        self._ears = ears
        self._trust = TRUST_FULL
        self._idle, self._busy, self._spins = IDLE_FIRST, BUSY_FIRST, 0

    def next(self, moved: bool, busy: bool, woken: Woken | None) -> Nap:
        """Return the next sleep. `moved`: the last poll made progress; `busy`: transfers are in progress; `woken`: how listening
        ended."""
        if moved:
            self._idle, self._busy, self._spins = IDLE_FIRST, BUSY_FIRST, 0
            return Nap(0.0)
        if busy:
            return Nap(self._next_busy())
        if woken is Woken.SOUND:
            return Nap(IDLE_FIRST)
        if self._ears and not self.deaf:
            return Nap(LISTEN, listening=True)
        seconds, self._idle = self._idle, min(IDLE_LAST, self._idle * IDLE_GROWTH)
        return Nap(seconds, listening=self._ears and seconds == IDLE_LAST)

    @property
    def deaf(self) -> bool:
        """Return True if too many messages came unheard."""
        return self._trust < TRUST_ENOUGH

    def judge(self, woken: Woken | None) -> None:
        """Record that a message arrived; `woken`: how listening for it ended, None without listening."""
        if woken is Woken.SOUND:
            self._trust = min(TRUST_FULL, self._trust + 1)
        elif woken is Woken.TIMEOUT:
            self._trust = max(0, self._trust - TRUST_LOST_BY_A_MISS)

    def _next_busy(self) -> float:
        if self._spins < BUSY_SPINS:
            self._spins += 1
            return 0.0
        seconds, self._busy = self._busy, min(BUSY_LAST, self._busy * BUSY_GROWTH)
        return seconds
