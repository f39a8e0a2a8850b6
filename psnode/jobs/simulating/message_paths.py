"""The paths of messages between ranks in virtual time, which consist of threads that send and receive, links, and delays."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from psnode.jobs.planning.profile import HostCosts
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.host_cores import Cores, FreeThread, SharingThread
from psnode.jobs.simulating.paired_links import HubLinks, LinksOfRanks, PairedLinks
from psnode.plans.roles import MASTER


@dataclass(slots=True)
class _MovingFrame:
    """A message on its way from one rank to another.

    `parts`: the number of links and threads that have not finished with it. `taken`: the latest time at which one of them
    finished.
    """

    parts: int
    taken: float
    call: Callable[..., object]
    arguments: tuple[object, ...]


class MessagePaths:
    """The paths of all messages of a job. `sent`, `received`: by rank, the bytes of group frames given to its link.

    The links of all hosts have the same rate. At each end, a frame also takes time of the thread that calls MPI, which
    handles one frame after another. A frame arrives half a round trip after the links and both threads have finished with it.
    A frame from a rank to itself arrives immediately and is not counted.

    `ranks`: the number of ranks, by default that of the workers and the master. `crossing`: True if ranks other than the
    master exchange frames with each other. If it is False, only the master's link determines the speed of frames, because a
    worker sends one frame after another. `cores`: by rank, the cores that the rank's thread shares with other threads; the
    threads of all other ranks never wait.
    """

    def __init__(
        self, loop: EventLoop, scenario: Scenario, host: HostCosts, *, ranks: int | None = None, crossing: bool = False,
        cores: Mapping[int, Cores] | None = None,
    ) -> None:  # fmt: skip
        self._loop, self._host = loop, host
        self._half_trip = scenario.round_trip / 2
        capacity = None if scenario.rate is None else scenario.rate / 8 * GOODPUT
        count = scenario.workers + 1 if ranks is None else ranks

        def weight(source: int, target: int) -> float:
            """Return the weight of the connection between two ranks, as in psnode.jobs.planning.scenario.HostModels."""
            return 1.0 + scenario.uneven * (2 * max(source, target) / (count - 1) - 1)

        self._links: LinksOfRanks
        if crossing:
            self._links = PairedLinks(loop, capacity, count, weight)
        else:
            self._links = HubLinks(loop, capacity, {rank: weight(MASTER, rank) for rank in range(1, count)})
        self._sharing = {rank: SharingThread(shared) for rank, shared in (cores or {}).items()}
        self._threads = [FreeThread(loop) for _ in range(count)]
        self.sent, self.received = [0] * count, [0] * count
        self._cut: set[int] = set()
        self._ways: dict[tuple[int, int], deque[_MovingFrame]] = defaultdict(deque)
        self._latest: dict[tuple[int, int], float] = {}  # by source and target, the arrival of the last frame

    def up(self, rank: int, nbytes: int, call: Callable[..., object], *arguments: object, to: int = MASTER) -> int:
        """Send a frame of worker `rank` to the rank `to`. Call `call` with `arguments` when the frame arrives.

        Returns the bytes sent, which are 0 if one of the ranks is gone, and for a frame from a rank to itself.
        """
        return self._send(rank, to, nbytes, call, arguments)

    def down(self, rank: int, nbytes: int, call: Callable[..., object], *arguments: object, source: int = MASTER) -> int:
        """Send a frame of the rank `source` to worker `rank`. Call `call` with `arguments` when the frame arrives.

        Returns the bytes sent, as `up` does.
        """
        return self._send(source, rank, nbytes, call, arguments)

    def tell(self, rank: int, call: Callable[..., object], *arguments: object) -> None:
        """Send a control message of the master to `rank`.

        It has no bytes and no costs, and arrives after the master's earlier frames to the rank.
        """
        self._control(MASTER, rank, call, arguments)

    def answer(self, rank: int, time: float, call: Callable[..., object], *arguments: object) -> None:
        """Send a control message of `rank` to the master at `time`.

        It has no bytes and no costs, and arrives after the rank's earlier frames to the master.
        """
        self._loop.at(time, self._control, rank, MASTER, call, arguments)

    def count(self, source: int, target: int, nbytes: int) -> int:
        """Count the bytes of a frame on the links of its sender and its receiver, and return them."""
        self.sent[source] += nbytes
        self.received[target] += nbytes
        return nbytes

    def is_cut(self, rank: int) -> bool:
        """Return True if `rank` neither sends nor receives any more."""
        return rank in self._cut

    def cut(self, rank: int) -> None:
        """Discard all messages from and to `rank` that the links have not carried yet, and all later ones."""
        self._cut.add(rank)
        self._links.cut(rank)

    def _send(self, source: int, target: int, nbytes: int, call: Callable[..., object], arguments: tuple[object, ...]) -> int:
        if source in self._cut or target in self._cut:
            return 0
        if source == target:
            call(*arguments)
            return 0
        self.count(source, target, nbytes)
        way, message = (source, target), _MovingFrame(1, 0.0, call, arguments)
        self._ways[way].append(message)
        for rank, each in ((source, self._host.sends), (target, self._host.takes)):
            if rank not in self._sharing:
                message.taken = max(message.taken, self._threads[rank].reserve(self._host.message, nbytes * each))
            elif self._host.message + nbytes * each:
                message.parts += 1
                self._sharing[rank].run(self._host.message + nbytes * each, self._finish, way, message)
        self._links.send(source, target, nbytes, self._finish, way, message)
        return nbytes

    def _control(self, source: int, target: int, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        if source not in self._cut and target not in self._cut:
            way, message = (source, target), _MovingFrame(1, 0.0, call, arguments)
            self._ways[way].append(message)
            self._links.send(source, target, 0, self._finish, way, message)

    def _finish(self, way: tuple[int, int], message: _MovingFrame) -> None:
        """Record that a link or a thread has finished with a message.

        Then deliver the messages between these two ranks that are finished, in the order in which they were sent.
        """
        message.parts -= 1
        message.taken = max(message.taken, self._loop.now)
        waiting = self._ways[way]
        while waiting and not waiting[0].parts:
            first = waiting.popleft()
            self._latest[way] = time = max(first.taken, self._latest.get(way, 0.0))
            self._loop.at(time + self._half_trip, first.call, *first.arguments)
