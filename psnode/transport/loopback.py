"""A transport between threads of one process, for `psnode train --local` and for tests without MPI."""

from __future__ import annotations

from collections.abc import Sequence

from psnode.errors import TransportError
from psnode.transport.base import Arrival, Buffer, Inboxes, PeerLost, Pending, Transport
from psnode.transport.pool import Pool
from psnode.transport.sending import Send, check_address, lay_out

_POOL_BYTES = 256 << 20


def loopback_group(size: int) -> list[LoopbackTransport]:
    """Return `size` connected transports, one for each thread. Element r belongs to the thread that runs rank r."""
    if size < 1:
        raise TransportError(f"size is {size}: a group has at least 1 rank")
    group: list[LoopbackTransport] = []
    pool = Pool(_POOL_BYTES)
    group.extend(LoopbackTransport(rank, size, group, pool) for rank in range(size))
    return group


class LoopbackTransport(Transport):
    """Puts a copy of each message into an inbox of the receiver, so the sender may change its buffers immediately."""

    def __init__(self, rank: int, size: int, group: list[LoopbackTransport], pool: Pool) -> None:
        self.rank, self.size, self.inboxes = rank, size, Inboxes()
        self.local_rank = rank
        self._group, self._pool = group, pool
        self._closed = self._dead = False

    def send(self, rank: int, tag: int, buffers: Sequence[Buffer]) -> Pending:
        check_address(rank, tag, self.size)
        if self._closed:
            raise TransportError(f"rank {self.rank} has closed its transport: nothing more can be sent")
        if not self._group[rank]._closed:
            block = lay_out(buffers, self._pool, copy=True)
            self._group[rank].inboxes.deliver(Arrival(self.rank, tag, block.data, block.release))
        sent = Send()
        sent.finish()
        return sent

    def alive(self) -> frozenset[int]:
        return frozenset(peer.rank for peer in self._group if not peer._dead)

    def close(self, seconds: float = 5.0) -> None:
        self._closed = True

    def die(self, reason: str) -> None:
        """Leave the group as a process does that crashes: post PeerLost to the inboxes of all other ranks."""
        if self._closed:
            return
        self._closed = self._dead = True
        for peer in self._group:
            if peer is not self:
                peer.inboxes.tell(PeerLost(self.rank, reason))
