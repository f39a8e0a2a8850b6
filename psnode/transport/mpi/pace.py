"""The sleeps of the thread that polls MPI. MPI moves bytes only inside its calls, but constant polling would occupy a core."""

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
# A poll that ran longer than this has copied about 100 kB, so the thread polls again without a sleep.
MOVED_NANOSECONDS = 40_000


class Nap(NamedTuple):
    """A sleep of `seconds`. If `listening` is True, a message ends the sleep early."""

    seconds: float
    listening: bool = False


class Pace:
    """Decides on the time before the next poll, from the results of the last polls.

    While transfers are in progress, the thread polls without sleeping as long as bytes come fast, and for BUSY_SPINS polls
    after that. Then it sleeps for BUSY_FIRST, rising to BUSY_LAST. So a slow link costs few polls: the buffers of sockets hold
    more bytes than the link delivers in BUSY_LAST (62 kB at 1 Gbit/s). A fast link gets the whole core.

    Without transfers and without a listener, the thread sleeps for IDLE_FIRST, rising to IDLE_LAST. With a listener, it
    listens for LISTEN seconds at a time. After a sound (the listener was woken) without a complete message, it sleeps for
    IDLE_FIRST, so that a slow link does not wake the thread for each packet.

    On some networks messages do not wake the listener. Each such message lowers the trust in listening; each sound raises it.
    Below TRUST_ENOUGH, sleeps are as short as without a listener, but the thread still listens during the longest sleeps.
    """

    def __init__(self, ears: bool) -> None:
        self._ears = ears
        self._trust = TRUST_FULL
        self._idle, self._busy, self._spins = IDLE_FIRST, BUSY_FIRST, 0

    def next(self, moved: bool, busy: bool, woken: Woken | None) -> Nap:
        """Return the next sleep.

        `moved`: True if the last poll made progress. `busy`: True if transfers are in progress. `woken`: the reason why
        listening ended, or None if the thread did not listen.
        """
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
        """True if too many messages came without waking the listener."""
        return self._trust < TRUST_ENOUGH

    def judge(self, woken: Woken | None) -> None:
        """Record that a message arrived. `woken`: the reason why listening ended, or None if the thread did not listen."""
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
