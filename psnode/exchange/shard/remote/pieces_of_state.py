"""State that shards hand over while rounds go on, which the master fetches piece by piece."""

from __future__ import annotations

from collections.abc import Iterable

from psnode.errors import WireError
from psnode.exchange.shard.remote.shard_calls import ShardCalls, broken
from psnode.exchange.shard.shard_events import StatePart
from psnode.protocol.wire import Frame


class PiecesOfState:
    """Pieces of the state of `version` from the shards of `ranks`, one rank after another.

    A rank gets the request for a piece when the previous piece has come. So one piece at a time is on the way to the master, and
    frames of rounds wait behind one piece at most, however many shards there are and however slow the links are.
    """

    def __init__(self, calls: ShardCalls, version: int, ranks: Iterable[int]) -> None:
        self._calls, self._version, self._ranks = calls, version, sorted(ranks)
        self._content, self._order = bytearray(), 0
        self._ask()

    def _ask(self) -> None:
        self._order = self._calls.order("next_piece", to=self._ranks[:1])
        self._calls.later = self._order

    def awaits(self, frame: Frame) -> bool:
        """Return True if an ANSWER frame has the piece that was asked for."""
        return bool(self._ranks) and (frame.sender, frame.step) == (self._ranks[0], self._order)

    def take(self, frame: Frame) -> StatePart | None:
        """Take a piece and ask for the next one. Return the part of its sender if this was the last piece of the part.

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
