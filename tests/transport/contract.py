"""The contract of every transport, as checks that all ranks of a job run together.

    for check in CHECKS:                  # every rank, in this order, on one connected group
        check(Ranks(transport))
    check_closing(transport)              # last

A check that fails raises ContractError. Every pair of ranks is checked in both directions. Messages of a rank to itself must
arrive like all others.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from psnode.errors import DeadlineExceededError, TransportError
from psnode.transport.base import Arrival, Bytes, Transport

SECONDS = 30.0
_MEET_TAG = 4000
_SIZES = (0, 1, 2, 15, 16, 17, 1023, 1024, 1025, 4095, 4097, 65_535, 65_537, 1 << 20, (1 << 20) + 3)


class ContractError(AssertionError):
    """An error that names the term of the contract that a transport breaks."""


class Ranks:
    """One rank's view of the group under test. Receives messages by source and tag, in any order of the sources.

    `peers` holds all ranks, this rank first and the others in cyclic order, so that the ranks do not all send to the same peer at
    once.
    """

    def __init__(self, transport: Transport, big: int = 32 << 20) -> None:
        self.transport, self.big = transport, big
        self.rank, self.size = transport.rank, transport.size
        self._waiting: defaultdict[tuple[int, int], deque[Arrival]] = defaultdict(deque)
        self.peers = [(self.rank + distance) % self.size for distance in range(self.size)]
        self._meetings = 0

    def take(self, source: int, tag: int, seconds: float = SECONDS) -> Arrival:
        """Return the oldest message from `source` with `tag` that was not taken yet; raise an error after `seconds`."""
        if self._waiting[source, tag]:
            return self._waiting[source, tag].popleft()
        end = time.monotonic() + seconds
        while True:
            arrival = self.transport.wait(tag, end - time.monotonic())
            expect(arrival.tag == tag, f"a message with tag {arrival.tag} lay in the inbox of tag {tag}")
            if arrival.source == source:
                return arrival
            self._waiting[arrival.source, tag].append(arrival)

    def meet(self) -> None:
        """Block until every rank has called this method equally often; fail if a rank is at another check."""
        self._meetings += 1
        word = b"%d" % self._meetings
        others = range(1, self.size) if self.rank == 0 else range(1)
        if self.rank != 0:
            self.transport.send(0, _MEET_TAG, [word])
        for peer in others:
            expect(self.take(peer, _MEET_TAG).data.tobytes() == word, f"rank {peer} is at another check than rank {self.rank}")
        if self.rank == 0:
            for peer in others:
                self.transport.send(peer, _MEET_TAG, [word])


def expect(truth: bool, otherwise: str) -> None:
    """Raise ContractError unless `truth`."""
    if not truth:
        raise ContractError(otherwise)


def pattern(sender: int, number: int, nbytes: int) -> Bytes:
    """Return `nbytes` bytes that identify the sender and the message; sender and receiver compute the same bytes."""
    return np.random.default_rng((sender, number, nbytes)).integers(0, 256, nbytes, np.uint8)


def expect_pattern(arrival: Arrival, number: int, nbytes: int) -> None:
    """Raise ContractError unless `arrival` is its sender's message `number`, complete and aligned."""
    what = f"message {number} from rank {arrival.source}"
    expect(arrival.data.nbytes == nbytes, f"{what} has {arrival.data.nbytes} bytes, {nbytes} were sent")
    expect(arrival.data.ctypes.data % 16 == 0, f"{what} is not aligned to 16 bytes")
    expect(np.array_equal(arrival.data, pattern(arrival.source, number, nbytes)), f"{what} has other contents than were sent")


def check_sizes(ranks: Ranks) -> None:
    """Check that every message, empty ones included, arrives with its own length and bytes."""
    for peer in ranks.peers:
        for number, nbytes in enumerate(_SIZES):
            ranks.transport.send(peer, 1, [pattern(ranks.rank, number, nbytes)])
    for peer in ranks.peers:
        for number, nbytes in enumerate(_SIZES):
            arrival = ranks.take(peer, 1)
            expect_pattern(arrival, number, nbytes)
            arrival.release()


def check_big(ranks: Ranks) -> None:
    """Check that all pairs of ranks can exchange messages of `ranks.big` bytes in both directions at the same time."""
    sends = [ranks.transport.send(peer, 2, [pattern(ranks.rank, 7, ranks.big)]) for peer in ranks.peers]
    for peer in ranks.peers:
        arrival = ranks.take(peer, 2)
        expect_pattern(arrival, 7, ranks.big)
        arrival.release()
    for send in sends:
        send.wait(SECONDS)


def check_order(ranks: Ranks) -> None:
    """Check that between two ranks a small message does not overtake a large one, even with another tag."""
    sizes = [(200_000, 8, 70_000, 0, 3000)[i % 5] for i in range(60)]
    for number, nbytes in enumerate(sizes):
        for peer in ranks.peers:
            ranks.transport.send(peer, 10 + number % 3, [pattern(ranks.rank, number, nbytes)])
    for peer in ranks.peers:
        for number in range(2, len(sizes), 3):
            later = ranks.take(peer, 12)
            for earlier in (number - 2, number - 1):
                try:
                    arrival = ranks.take(peer, 10 + earlier % 3, seconds=0)
                except DeadlineExceededError:
                    raise ContractError(f"message {earlier} from rank {peer} was overtaken") from None
                expect_pattern(arrival, earlier, sizes[earlier])
                arrival.release()
            expect_pattern(later, number, sizes[number])
            later.release()


def check_many(ranks: Ranks) -> None:
    """Check that 2000 small messages from every rank, sent to all ranks in turn, arrive."""
    count = 2000 // ranks.size
    for number in range(count):
        for peer in ranks.peers:
            ranks.transport.send(peer, 3, [number.to_bytes(4, "little")])
    for peer in ranks.peers:
        for number in range(count):
            arrival = ranks.take(peer, 3)
            expect(
                int.from_bytes(arrival.data.tobytes(), "little") == number, f"small message {number} from rank {peer} is wrong"
            )


def check_tags(ranks: Ranks) -> None:
    """Check that tags 0 to 4095 arrive as they were sent, and that other tags and ranks are refused."""
    for peer in ranks.peers:
        for tag in (0, 5, 4095):
            ranks.transport.send(peer, tag, [b"%d" % tag])
    for peer in ranks.peers:
        for tag in (4095, 5, 0):
            expect(ranks.take(peer, tag).data.tobytes() == b"%d" % tag, f"tag {tag} was not carried")
    for rank, tag in ((0, -1), (0, 4096), (-1, 0), (ranks.size, 0)):
        _expect_refused(partial(ranks.transport.send, rank, tag, [b""]), f"rank {rank}, tag {tag}")
    for tag in (-1, 4096):
        _expect_refused(partial(ranks.transport.inbox, tag), f"the inbox of tag {tag}")


def check_inboxes(ranks: Ranks) -> None:
    """Check that readers of two tags can wait at the same time, and that each receives exactly the messages of its tag."""
    found: dict[int, list[str]] = {30: [], 31: []}

    def read(tag: int) -> None:
        for _ in range(100 * ranks.size):
            arrival = ranks.transport.wait(tag, SECONDS)
            found[tag].append(arrival.data.tobytes().decode())

    readers = [threading.Thread(target=read, args=(tag,)) for tag in found]
    for reader in readers:
        reader.start()
    for number in range(100):
        for peer in ranks.peers:
            for tag in found:
                ranks.transport.send(peer, tag, [f"{ranks.rank} {tag} {number}".encode()])
    for reader in readers:
        reader.join()
    for tag, words in found.items():
        for peer in ranks.peers:
            of_peer = [word for word in words if word.startswith(f"{peer} ")]
            expect(of_peer == [f"{peer} {tag} {number}" for number in range(100)], f"the reader of tag {tag} got other messages")
        expect(ranks.transport.poll(tag) is None, f"more came with tag {tag} than was sent")


def check_buffers(ranks: Ranks) -> None:
    """Check that buffers of any kind, strided and empty ones included, are sent joined end to end."""
    floats = np.arange(5, dtype=np.float32)
    strided = memoryview(b"a-b-c-")[::2]
    for peer in ranks.peers:
        ranks.transport.send(peer, 4, [b"head", bytearray(b"er"), memoryview(b"!"), b"", floats.view(np.uint8), strided])
        ranks.transport.send(peer, 4, [strided])
        ranks.transport.send(peer, 4, [])
    for peer in ranks.peers:
        expected = (b"header!" + floats.tobytes() + b"abc", b"abc", b"")
        expect(all(ranks.take(peer, 4).data.tobytes() == one for one in expected), "buffers were not sent end to end")


def check_reuse_by_sender(ranks: Ranks) -> None:
    """Check that a buffer may be overwritten once its send is done: the receiver still gets the earlier contents."""
    buffer = np.empty(300_000, np.uint8)
    for number in range(6):
        buffer[:] = pattern(ranks.rank, number, buffer.size)
        for send in [ranks.transport.send(peer, 5, [buffer]) for peer in ranks.peers]:
            send.wait(SECONDS)
            expect(send.done, "a send that was waited for is not done")
    for peer in ranks.peers:
        for number in range(6):
            expect_pattern(ranks.take(peer, 5), number, buffer.size)


def check_reuse_by_receiver(ranks: Ranks) -> None:
    """Check that released memory is reused safely, even if it is released twice, and that unreleased memory
    keeps its contents.
    """
    kept: list[tuple[Arrival, int]] = []
    for number in range(30):
        for peer in ranks.peers:
            ranks.transport.send(peer, 6, [pattern(ranks.rank, number, 50_000)])
        for peer in ranks.peers:
            arrival = ranks.take(peer, 6)
            expect_pattern(arrival, number, 50_000)
            if number % 3 == 0:
                kept.append((arrival, number))
            else:
                arrival.release()
                arrival.release()
    for arrival, number in kept:
        expect_pattern(arrival, number, 50_000)


def check_threads(ranks: Ranks) -> None:
    """Check that several threads can send at once, and that the messages of each thread arrive in order."""

    def send_all(tag: int) -> None:
        for number in range(100):
            for peer in ranks.peers:
                ranks.transport.send(peer, tag, [pattern(ranks.rank, number, 100 + 997 * (number % 7))])

    tags = range(20, 24)
    threads = [threading.Thread(target=send_all, args=(tag,)) for tag in tags]
    for thread in threads:
        thread.start()
    for peer in ranks.peers:
        for tag in tags:
            for number in range(100):
                expect_pattern(ranks.take(peer, tag), number, 100 + 997 * (number % 7))
    for thread in threads:
        thread.join()


def check_deadline(ranks: Ranks) -> None:
    """Check that waiting without a message raises DeadlineExceededError, neither early nor much too late."""
    for peer in ranks.peers:
        ranks.transport.send(peer, 7, [b"not for that reader"])
    began = time.monotonic()
    try:
        ranks.transport.wait(8, 0.2)
    except DeadlineExceededError:
        waited = time.monotonic() - began
        expect(0.19 <= waited < SECONDS, f"a wait of .2 s took {waited:.3f} s")
    else:
        raise ContractError("a message arrived that nobody sent")
    expect(ranks.transport.poll(8) is None, "poll found a message that nobody sent")
    for peer in ranks.peers:
        ranks.take(peer, 7)


def check_alive(ranks: Ranks) -> None:
    """Check that all ranks are reported alive while no rank has died."""
    expect(ranks.transport.alive() == frozenset(range(ranks.size)), f"alive are {sorted(ranks.transport.alive())}")


def check_closing(transport: Transport) -> None:
    """Check that closing returns in time, may be repeated, and ends sending. All ranks call this check last."""
    began = time.monotonic()
    transport.close(SECONDS)
    transport.close(SECONDS)
    expect(time.monotonic() - began < SECONDS, "closing took more than its deadline although all ranks close")
    _expect_refused(partial(transport.send, 0, 0, [b"late"]), "sending after close")


CHECKS: tuple[Callable[[Ranks], None], ...] = (
    check_alive,
    check_sizes,
    check_big,
    check_order,
    check_many,
    check_tags,
    check_inboxes,
    check_buffers,
    check_reuse_by_sender,
    check_reuse_by_receiver,
    check_threads,
    check_deadline,
)


def run_contract(transport: Transport, big: int = 32 << 20) -> Iterator[str]:
    """Run every check on this rank, yield the name of each check that passed, and close the transport."""
    ranks = Ranks(transport, big)
    for check in CHECKS:
        ranks.meet()
        check(ranks)
        yield check.__name__
    ranks.meet()
    check_closing(transport)
    yield check_closing.__name__


def _expect_refused(action: Callable[[], object], what: str) -> None:
    try:
        action()
    except TransportError:
        return
    raise ContractError(f"{what} was not refused")
