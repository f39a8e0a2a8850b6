"""States that shards hand over while rounds go on. The master fetches them piece by piece."""

from __future__ import annotations

from collections.abc import Iterable

from psnode.errors import WireError
from psnode.exchange.shard.remote.shard_calls import ShardCalls, broken
from psnode.exchange.shard.shard_events import StatePart
from psnode.protocol.wire import Frame


class PiecesOfState:
    """Pieces of the state of `version` from the shards of `ranks`, one rank after another.

    The next piece is requested only when the previous piece has come. So only one piece at a time is on its way to the master,
    and frames of rounds wait for at most one piece, whatever the number of shards and the rate of the links.
    """

    def __init__(self, calls: ShardCalls, version: int, ranks: Iterable[int]) -> None:
        self._calls, self._version, self._ranks = calls, version, sorted(ranks)
        self._content, self._order = bytearray(), 0
        self._ask()

    def _ask(self) -> None:
        self._order = self._calls.order("next_piece", to=self._ranks[:1])
        self._calls.later = self._order

    def awaits(self, frame: Frame) -> bool:
        """Return True if an ANSWER frame contains the piece that was requested last."""
        return bool(self._ranks) and (frame.sender, frame.step) == (self._ranks[0], self._order)

    def take(self, frame: Frame) -> StatePart | None:
        """Take a piece and request the next one. If this was the last piece of a rank's part, return the part; otherwise None.

        Raises PsnodeError, naming the sender, for a piece that cannot be true.
        """
        rank, whole = frame.sender, frame.version
        self._content += bytes(frame.body)
        empty = not frame.body.size
        frame.release()
        if empty or len(self._content) > whole:
            raise broken(rank, WireError(f"a piece of a state of {whole} bytes has another size", rank))
        part = None
        if len(self._content) == whole:
            part = StatePart(rank, self._version, bytes(self._content))
            self._content = bytearray()
            self._ranks.remove(rank)
        if self._ranks:
            self._ask()
        return part
