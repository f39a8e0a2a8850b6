"""Flow control: a bound on the bytes in flight to each rank.

Rounds that do not wait for everybody outpace a slow worker, and nothing waits for a spare. Untaken weights fill
memory: the master's while the rank's host takes nothing, the rank's own while its main thread is busy. A rank with half of
the limit outstanding is asked to answer as soon as it has caught up. A rank above the limit is held: no version is sent to it
until it has answered, and then all weights of the newest one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

LEAST = 64 << 20  # bytes
SETS = 2


def limit_of(weights: int) -> int:
    """The limit in bytes where a whole set of weights has `weights` bytes."""
    return max(LEAST, SETS * weights)


@dataclass
class Hold:
    """A rank gets nothing from `version` on. `unused`: the groups of its gradient of that step which were not used."""

    version: int
    answered: bool = False
    unused: list[int] = field(default_factory=list)


@dataclass
class _Account:
    """Bytes since the start. `asked`: the number of the question that is not answered yet; `mark`: the bytes sent before that."""

    sent: int = 0
    taken: int = 0
    asked: int | None = None
    mark: int = 0


class FlowControl:
    """Bounds the weights between the master and each rank, by bytes. For the master's main thread.

    `weights`: the bytes of a whole set, float32. The bound is the limit, max(64 MiB, twice the weights), and beyond it the
    version that passed it and one whole set.
    """

    def __init__(self, weights: int) -> None:
        self.limit = limit_of(weights)
        self.held: dict[int, Hold] = {}
        self._accounts: dict[int, _Account] = {}

    def sent(self, ranks: Iterable[int], nbytes: int) -> None:
        """To each of `ranks` went `nbytes`."""
        for rank in ranks:
            self._accounts.setdefault(rank, _Account()).sent += nbytes

    def outstanding(self, rank: int) -> int:
        """The bytes that `rank` was sent and is not known to have taken."""
        account = self._accounts.get(rank, _Account())
        return account.sent - account.taken

    def ask(self, rank: int, number: int) -> bool:
        """True if `rank` is to be asked now; question `number` is then under way."""
        account = self._accounts.get(rank)
        if account is None or account.asked is not None or 2 * self.outstanding(rank) <= self.limit:
            return False
        account.asked, account.mark = number, account.sent
        return True

    def hold(self, rank: int, version: int) -> bool:
        """True if `rank` is held from `version` on; the question of this number is then under way."""
        if rank in self.held or self.outstanding(rank) <= self.limit:
            return False
        account = self._accounts[rank]
        account.asked, account.mark = version, account.sent
        self.held[rank] = Hold(version)
        return True

    def answer(self, rank: int, number: int) -> bool:
        """`rank` has come to question `number`; True if it was held until then."""
        account = self._accounts.get(rank)
        if account is None or account.asked != number:
            return False
        account.taken, account.asked = account.mark, None
        if (hold := self.held.get(rank)) is None:
            return False
        hold.answered = True
        return True

    def release(self, *, everybody: bool) -> dict[int, Hold]:
        """Release the held ranks that have answered, or all if `everybody`; returns them."""
        found = {rank: hold for rank, hold in self.held.items() if hold.answered or everybody}
        for rank in found:
            del self.held[rank]
        return found

    def let_go(self, rank: int) -> Hold | None:
        """`rank` takes no part any more: how it was held, if it was."""
        return self.held.pop(rank, None)
