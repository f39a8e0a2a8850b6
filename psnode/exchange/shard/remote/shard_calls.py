"""Calls of the master to the shards on other ranks. A call is an order, and an answer if the order has a result."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from psnode.errors import DeadlineExceededError, PeerLostError, PsnodeError, TransportError, WireError
from psnode.exchange.shard.remote.shard_messages import Order, unpack_result
from psnode.protocol.channel import SHARD_TAG, FrameChannel, RemoteFailureError
from psnode.protocol.wire import Bytes, Frame, Kind
from psnode.transport.base import PeerLost

ANSWER_SECONDS = 5.0  # a shard that does not answer within this time is itself the reason why the round waits
HAS_A_PART = "which has a part of the weights and of the optimizer's memory"


class ShardCalls:
    """Calls over `link` to the shards of `ranks`, which carry out orders one after another.

    `needs_all`: True if the run ends when any of these ranks is lost. If it is False, a call does not wait for a lost or silent
    rank, and leaves the loss in the inbox for the master's loop. A rank that has not answered a call with `patient=False` may
    have fallen silent, perhaps together with others. Later patient calls do not wait for it until it is `heard` again.
    """

    def __init__(self, link: FrameChannel, ranks: Iterable[int], *, needs_all: bool = True) -> None:
        self._link, self._ranks, self._number, self._needs_all = link, sorted(ranks), 0, needs_all
        self._silent: set[int] = set()
        self.later = 0  # the number of an order whose answer comes among other events

    @property
    def ranks(self) -> list[int]:
        """The ranks of all shards that are called, ascending."""
        return list(self._ranks)

    def forget(self, rank: int) -> None:
        """From now on, do not call the shard of `rank`."""
        self._ranks = [other for other in self._ranks if other != rank]

    def heard(self, rank: int) -> None:
        """Record that a frame has come from the shard of `rank`."""
        self._silent.discard(rank)

    def order(self, name: str, to: Sequence[int] | None = None, **arguments: Any) -> int:
        """Order all shards, or the shards of the ranks in `to`, to call their method `name`. Return the number of the order."""
        self._number += 1
        ranks = self._ranks if to is None else to
        self._link.send(ranks, Kind.ORDER, Order(name, arguments).to_bytes(), step=self._number, tag=SHARD_TAG)
        return self._number

    def ask(
        self, name: str, seconds: float, *, patient: bool = True, to: Sequence[int] | None = None, **arguments: Any
    ) -> dict[int, Frame]:
        """Give an order, see `order`, and return the answers by rank. Other events that come in the meantime stay in the inbox.

        If all ranks are needed, raises TransportError if a rank is lost. It is also raised after `seconds` without an answer,
        unless `patient` is False.

        If not all ranks are needed, the result contains no answer of a rank that is lost or silent. A patient call puts the
        loss of such a rank into the inbox, even if the transport has not announced the loss yet. So the master's loop learns
        of the loss before any event that follows the call.
        """
        ranks = self._ranks if to is None else to
        number, inbox = self.order(name, ranks, **arguments), self._link.inbox
        found: dict[int, Frame] = {}
        others: list[object] = []
        dead = set(ranks) - self._link.transport.alive() if not self._needs_all else set[int]()
        lost = set(dead)
        end = time.monotonic() + seconds
        try:
            while set(ranks) - found.keys() - lost - (self._silent if patient else set()):
                event: object
                try:
                    event = self._link.next(end - time.monotonic())
                except DeadlineExceededError:
                    break
                except PeerLostError as error:
                    if self._needs_all and error.rank in self._ranks:
                        raise cannot_go_on(f"rank {error.rank}") from error
                    lost.add(error.rank)
                    event = PeerLost(error.rank, error.reason)
                except RemoteFailureError as error:
                    if self._needs_all and error.rank in self._ranks:
                        raise
                    lost.add(error.rank)
                    event = error
                except WireError as error:
                    event = error
                if isinstance(event, Frame):
                    self.heard(event.sender)
                if isinstance(event, Frame) and event.kind is Kind.ANSWER and event.step == number:
                    found[event.sender] = event
                    end = time.monotonic() + seconds
                elif isinstance(event, Frame) and event.kind is Kind.ANSWER and event.step != self.later:
                    event.release()
                else:
                    others.append(event)
            silent = [rank for rank in ranks if rank not in found and rank not in lost]
            if not self._needs_all and patient:
                others += [PeerLost(rank, "its process has died") for rank in sorted(dead)]
                others += [PeerLost(rank, "its shard does not answer") for rank in silent]
            elif not self._needs_all:
                self._silent.update(silent)
        finally:
            inbox.put_back(others)
        if silent and patient and self._needs_all:
            names = ", ".join(f"rank {rank}" for rank in silent)
            raise cannot_go_on(f"{names}, silent for {seconds:.3g} s")
        return found

    def results(self, name: str, seconds: float, *, patient: bool = True, **arguments: Any) -> dict[int, Any]:
        """Give an order and return the results by rank.

        Raises the errors of `ask`, and PsnodeError for an answer that is not a result.
        """
        found = {}
        for rank, frame in self.ask(name, seconds, patient=patient, **arguments).items():
            try:
                found[rank] = unpack_result(frame.body, rank)
            except WireError as error:
                raise broken(rank, error) from error
            frame.release()
        return found

    def pass_on(self, frame: Bytes, to: Sequence[int]) -> None:
        """Send the sealed gradient frame of a lost worker to the shards of the ranks in `to`."""
        self._link.send(to, Kind.PASSED_ON, frame.tobytes(), tag=SHARD_TAG)


def cannot_go_on(ranks: str) -> TransportError:
    """Return the error that the run cannot go on without `ranks`, a text."""
    return TransportError(
        f"the run cannot go on without {ranks}, {HAS_A_PART}: go on from the last checkpoint with --resume (psnode launch "
        "--restarts does it), or use another --topology"
    )


def broken(rank: int, error: WireError) -> PsnodeError:
    """Return the error for a message from the shard of `rank` that cannot be true."""
    return PsnodeError(f"rank {rank} has sent a message about its part of the weights that cannot be true: {error}")
