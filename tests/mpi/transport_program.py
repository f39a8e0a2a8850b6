"""Ranks of the transport tests: `python transport_program.py SCENE [ARGUMENTS]`, under mpirun."""

from __future__ import annotations

import os
import signal
import sys
import time

from psnode.errors import MissingRanksError, TransportError
from psnode.transport.barrier import gather_hello, send_hello
from psnode.transport.base import Arrival, PeerLost
from psnode.transport.mpi import endpoint as mpi
from psnode.transport.mpi.environment import place
from psnode.transport.mpi.thread import Call
from tests.transport.contract import run_contract


def say(*words: object) -> None:
    """Print one line with a single write, so that lines of different ranks do not mix."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def contract(piece_bytes: str, big: str) -> None:
    """Run every check of the contract."""
    assert place() is not None
    transport = mpi.start(piece_bytes=int(piece_bytes))
    assert place() == (transport.rank, transport.size)
    for name in run_contract(transport, int(big)):
        say("passed", name, transport.rank)
    say("clean", transport.clean)


def death() -> None:
    """Exchange messages with rank 0 until one rank is killed from outside; the remaining ranks then continue, and leave."""
    transport = mpi.start()
    say("up", transport.rank)
    if transport.rank:
        while (arrival := transport.inbox(1).wait(30)) is not None:
            if isinstance(arrival, Arrival):
                if arrival.data.tobytes() == b"end":
                    break
                transport.send(0, 1, [arrival.data.tobytes() * 1000])
    else:
        _lead_through_death(mpi_transport=transport)
    transport.close()
    say("rank", transport.rank, "clean", transport.clean)
    os._exit(0)


def _lead_through_death(mpi_transport: mpi.MpiTransport) -> None:
    transport = mpi_transport
    workers = set(range(1, transport.size))
    answers = 0
    lost: int | None = None
    for worker in workers:
        transport.send(worker, 1, [b"x" * 1000])
    end = time.monotonic() + 30
    while lost is None or answers < 200:
        event = transport.inbox(1).wait(end - time.monotonic())
        if isinstance(event, PeerLost):
            lost, answers = event.rank, 0
            assert transport.inbox(2).wait(30) == event  # every role of a rank receives the event
            say("lost", event.rank, "at", time.time(), "alive", *sorted(transport.alive()))
            assert transport.send(event.rank, 1, [b"to the dead"] * 2).wait(60) is None
        elif isinstance(event, Arrival):
            assert event.data.size == 1_000_000
            event.release()
            answers += 1
            transport.send(event.source, 1, [b"x" * 1000])
    say("answers after the loss", answers)
    for worker in transport.alive() - {0}:
        transport.send(worker, 1, [b"end"])


def orphans() -> None:
    """Wait until rank 0 is killed from outside, and check that the workers receive the event and leave in time."""
    transport = mpi.start()
    say("up", transport.rank)
    event = transport.inbox(0).wait(30)
    say(f"rank {transport.rank}:", event)
    began = time.monotonic()
    transport.close(10.0)
    say("left after", time.monotonic() - began, "clean", transport.clean)
    os._exit(0)


def missing() -> None:
    """Have rank 2 start MPI but never report."""
    transport = mpi.start()
    if transport.rank == 0:
        try:
            gather_hello(transport, b"master", 1.0)
        except MissingRanksError as error:
            say("missing", *error.ranks, "|", error)
    elif transport.rank != 2:
        send_hello(transport, b"here")
    transport.close(10.0)


def late() -> None:
    """Have rank 1 sleep and exit without calling MPI_Init; rank 0 waits for it until a deadline of 1.5 s."""
    found = place()
    assert found is not None
    if found.rank == 1:
        time.sleep(5)
        os._exit(0)
    try:
        mpi.start(seconds=1.5)
    except MissingRanksError as error:
        say("refused:", error)
    os._exit(3)


def idle(seconds: str) -> None:
    """Print the share of a core that an idle process uses over `seconds` seconds."""
    transport = mpi.start()
    time.sleep(0.5)
    cpu, wall = time.process_time(), time.monotonic()
    time.sleep(float(seconds))
    say("idle", (time.process_time() - cpu) / (time.monotonic() - wall))
    transport.close(20.0)


def broken() -> None:
    """Break the MPI thread of rank 1: its owner learns this from the inbox, from `wait` and from the next send."""
    transport = mpi.start()
    if transport.rank == 0:
        transport.call(lambda module: time.sleep(3), 10)  # receives nothing meanwhile
    else:
        pending = transport.send(0, 0, [bytes(10_000_000)])
        transport._body.order(Call(lambda module: module.COMM_WORLD.Send([b"", module.BYTE], 99)))
        try:
            transport.wait(0, 20)
        except TransportError as error:
            say("heard:", error)
        try:
            transport.wait(1, 20)
        except TransportError as error:
            say("heard by another role:", error)
        try:
            pending.wait(60)
        except TransportError as error:
            say("not sent:", error)
        try:
            transport.send(0, 0, [b"more"])
        except TransportError as error:
            say("refused:", error)
    transport.close(1.0)
    say("clean", transport.clean)
    os._exit(0)


def abort() -> None:
    """Have rank 1 abort while rank 0 waits."""
    transport = mpi.start()
    if transport.rank == 1:
        transport.abort(7)
    transport.wait(0, 60)


def stays() -> None:
    """Have rank 1 stay open: rank 0 still leaves within its deadline, and is told that not all ranks closed."""
    transport = mpi.start()
    if transport.rank == 1:
        signal.pause()
    began = time.monotonic()
    transport.close(0.5)
    say("closed after", time.monotonic() - began, "clean", transport.clean)
    os._exit(5)


def malformed(part: str, nbytes: str) -> None:
    """Have rank 1 send bytes that are not part of a message; rank 0 treats rank 1 as lost, and continues with rank 2."""
    transport = mpi.start()
    if transport.rank == 1:
        data = (1 << 62).to_bytes(8, "little") + bytes(1 << 16)
        transport.call(lambda module: module.COMM_WORLD.Send([data, int(nbytes), module.BYTE], 0, int(part)), 10)
    elif transport.rank == 2:
        transport.send(0, 3, [b"all is well"])
    else:
        inbox = transport.inbox(3)
        for event in sorted((inbox.wait(20), inbox.wait(20)), key=lambda event: type(event).__name__):
            say(event.data.tobytes() if isinstance(event, Arrival) else event)
        say("alive", *sorted(transport.alive()))
        transport.send(1, 0, [b"dropped"]).wait(60)
    transport.close(1.0)
    os._exit(0)


def refused() -> None:
    """Try piece sizes that are out of bounds."""
    for piece_bytes in (0, (1 << 30) + 1):
        try:
            mpi.start(piece_bytes=piece_bytes)
        except Exception as error:
            say(type(error).__name__, error)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
