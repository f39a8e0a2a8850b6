"""Flow control: a bound on the bytes of weights in flight to each rank.

Rounds that do not wait for all workers can be faster than a slow worker, and no round waits for a spare. Weights that a rank
has not taken yet then fill memory: the master's memory while the rank's host receives no data, and the rank's memory while its
main thread is busy.

If more than half of the limit is outstanding, the master asks the rank to answer when it has taken all weights sent so far. If
more than the limit is outstanding, the rank is held: it gets no version before it has answered. After its answer it gets all
weights of the newest version.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

LEAST = 64 << 20  # bytes
SETS = 2


def limit_of(weights: int) -> int:
    """Return the limit in bytes for a model whose weights have `weights` bytes."""
    return max(LEAST, SETS * weights)


@dataclass
class Hold:
    """State of a rank that is held: `version` and later versions are not sent to it.

    `answered`: True if the rank has answered since. `unused`: the groups of the rank's gradient computed on `version` - 1 that
    were not used.
    """

    version: int
    answered: bool = False
    unused: list[int] = field(default_factory=list)


@dataclass
class _Account:
    """Bytes that were sent to one rank since the start, and bytes that the rank has taken.

    `asked`: number of the question that the rank has not answered yet. `mark`: the bytes that had been sent before this
    question.
    """

    sent: int = 0
    taken: int = 0
    asked: int | None = None
    mark: int = 0


class FlowControl:
    """Bound on the bytes of weights in flight from one root to each rank.

    Threads that send weights call `sent`. All other methods are called by the thread that decides which ranks are asked and
    held. `weights`: bytes of all weights in float32. The limit is max(64 MiB, twice `weights`). The bytes in flight exceed it
    by at most the bytes of one version and of one whole set of weights.
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
        """Count all bytes sent to `ranks` as taken.

        Call this for ranks that do no other work before they have taken these bytes.
        """
        for rank in ranks:
            if (account := self._accounts.get(rank)) is not None:
                account.taken = account.sent

    def outstanding(self, rank: int) -> int:
        """Return the number of bytes that were sent to `rank` and are not known to be taken."""
        account = self._accounts.get(rank, _Account())
        return account.sent - account.taken

    def ask(self, rank: int, number: int) -> bool:
        """Return True if the caller must now ask `rank` to answer. The question gets the `number`, and counts as asked."""
        account = self._accounts.get(rank)
        if account is None or account.asked is not None or 2 * self.outstanding(rank) <= self.limit:
            return False
        account.asked, account.mark = number, account.sent
        return True

    def hold(self, rank: int, version: int) -> bool:
        """Return True if `rank` must be held from `version` on.

        If so, also record that the rank is held and has been asked question number `version`.
        """
        if rank in self.held or self.outstanding(rank) <= self.limit:
            return False
        account = self._accounts[rank]
        account.asked, account.mark = version, account.sent
        self.held[rank] = Hold(version)
        return True

    def answer(self, rank: int, number: int) -> bool:
        """Record the answer of `rank` to question `number`. Return True if this rank is held."""
        account = self._accounts.get(rank)
        if account is None or account.asked != number:
            return False
        account.taken, account.asked = account.mark, None
        if (hold := self.held.get(rank)) is None:
            return False
        hold.answered = True
        return True

    def release(self, *, everybody: bool) -> dict[int, Hold]:
        """Release the held ranks that have answered, or all held ranks if `everybody` is True. Return their holds by rank."""
        found = {rank: hold for rank, hold in self.held.items() if hold.answered or everybody}
        for rank in found:
            del self.held[rank]
        return found

    def let_go(self, rank: int) -> Hold | None:
        """Release `rank`, which leaves the job. Return its hold, or None if it was not held."""
        return self.held.pop(rank, None)
