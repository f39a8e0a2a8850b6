"""Flow control: a bound on the bytes of weights in flight to each rank.

Rounds that do not wait for all workers outpace a slow worker, and no round waits for a spare. Weights that a rank has
not yet taken fill the master's memory while the rank's host receives nothing, and the rank's memory while its main
thread is busy. If more than half of the limit is outstanding, the rank is asked to answer once it has taken
everything sent so far. Above the limit it is held: it is sent no version until it has answered, and then all weights
of the newest version.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

LEAST = 64 << 20  # bytes
SETS = 2


def limit_of(weights: int) -> int:
    """Return the limit in bytes for a set of weights of `weights` bytes."""
    return max(LEAST, SETS * weights)


@dataclass
class Hold:
    """Hold on a rank, which is sent no version from `version` on.

    `unused`: the groups of the rank's gradient computed on `version` - 1 that were not used.
    """

    version: int
    answered: bool = False
    unused: list[int] = field(default_factory=list)


@dataclass
class _Account:
    """Bytes sent to and taken by one rank since the start.

    `asked`: number of the question that is not answered yet; `mark`: the bytes that had been sent before this question.
    """

    sent: int = 0
    taken: int = 0
    asked: int | None = None
    mark: int = 0


class FlowControl:
    """Bound on the bytes of weights in flight from one root to each rank.

    `sent` is called by the threads that send; every other method by the thread that decides which ranks are asked and held.
    `weights`: bytes of a whole set of float32 weights. The limit is max(64 MiB, twice `weights`). At most the version that passed
    the limit and one whole set of weights are in flight beyond it.
    """

    def __init__(self, weights: int) -> None:
        self.limit = limit_of(weights)
        self.held: dict[int, Hold] = {}
        self._accounts: dict[int, _Account] = {}
        self._counting = threading.Lock()

    def sent(self, ranks: Iterable[int], nbytes: int) -> None:
        """Count `nbytes` as sent to each of `ranks`."""
        with self._counting:
            for rank in ranks:
                self._accounts.setdefault(rank, _Account()).sent += nbytes

    def settle(self, ranks: Iterable[int]) -> None:
        """Count everything sent to `ranks` as taken, as these ranks do nothing before they have it."""
        for rank in ranks:
            if (account := self._accounts.get(rank)) is not None:
                account.taken = account.sent

    def outstanding(self, rank: int) -> int:
        """Return the number of bytes that were sent to `rank` and that it is not known to have taken."""
        account = self._accounts.get(rank, _Account())
        return account.sent - account.taken

    def ask(self, rank: int, number: int) -> bool:
        """Return True if `rank` has to be asked now. Question `number` then counts as asked."""
        account = self._accounts.get(rank)
        if account is None or account.asked is not None or 2 * self.outstanding(rank) <= self.limit:
            return False
        account.asked, account.mark = number, account.sent
        return True

    def hold(self, rank: int, version: int) -> bool:
        """Return True if `rank` has to be held from `version` on. It is then held, and question `version` counts as asked."""
        if rank in self.held or self.outstanding(rank) <= self.limit:
            return False
        account = self._accounts[rank]
        account.asked, account.mark = version, account.sent
        self.held[rank] = Hold(version)
        return True

    def answer(self, rank: int, number: int) -> bool:
        """Record the answer of `rank` to question `number`. Return True if the rank is held."""
        account = self._accounts.get(rank)
        if account is None or account.asked != number:
            return False
        account.taken, account.asked = account.mark, None
        if (hold := self.held.get(rank)) is None:
            return False
        hold.answered = True
        return True

    def release(self, *, everybody: bool) -> dict[int, Hold]:
        """Release and return the held ranks that have answered, or with `everybody` all held ranks."""
        found = {rank: hold for rank, hold in self.held.items() if hold.answered or everybody}
        for rank in found:
            del self.held[rank]
        return found

    def let_go(self, rank: int) -> Hold | None:
        """Release `rank`, which takes no part any more. Return its hold, or None if it was not held."""
        return self.held.pop(rank, None)
