"""The path of messages between the master and its workers in virtual time: threads that send and receive, links, and delays."""

from __future__ import annotations

from collections.abc import Callable

from psnode.jobs.planning.profile import HostCosts
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.shared_link import SharedLink
from psnode.plans.roles import MASTER


class MessagePaths:
    """Messages of a job. `sent`, `received`: by rank, the bytes of all group frames that were handed to the rank's link.

    The links of all hosts have the same rate, and a worker's frames follow each other. So only the master's link determines the
    speed of frames. At each end, a frame also takes time of the thread that calls MPI, in the order of the frames. A frame
    arrives half a round trip after the link and both threads have finished with it.
    """

    def __init__(self, loop: EventLoop, scenario: Scenario, host: HostCosts) -> None:
        self._loop, self._host = loop, host
        self._half_trip = scenario.round_trip / 2
        capacity = None if scenario.rate is None else scenario.rate / 8 * GOODPUT
        weights = {
            rank: 1.0 + scenario.uneven * (2 * rank / scenario.workers - 1) for rank in range(1, scenario.workers + 1)
        }  # weights as in psnode.jobs.planning.scenario.HostModels
        self._inward, self._outward = SharedLink(loop, capacity, weights), SharedLink(loop, capacity, weights)
        self._free = [0.0] * (scenario.workers + 1)  # the time at which each rank's MPI thread is free
        self.sent, self.received = [0] * (scenario.workers + 1), [0] * (scenario.workers + 1)
        self._cut: set[int] = set()
        self._latest: dict[tuple[int, bool], float] = {}  # by worker and direction, the arrival of the last frame

    def up(self, rank: int, nbytes: int, call: Callable[..., object], *arguments: object) -> None:
        """Send a worker's frame to the master, and call a function when the frame arrives."""
        self._transfer(rank, MASTER, nbytes)
        taken = self._threads(rank, MASTER, nbytes)
        self._inward.send(rank, nbytes, self._arrive, (rank, True), taken, call, arguments)

    def down(self, rank: int, nbytes: int, call: Callable[..., object], *arguments: object) -> int:
        """Send a frame of the master to a worker, and call a function when the frame arrives.

        Returns the bytes sent, which are 0 if the worker is gone.
        """
        if rank in self._cut:
            return 0
        self._transfer(MASTER, rank, nbytes)
        taken = self._threads(MASTER, rank, nbytes)
        self._outward.send(rank, nbytes, self._arrive, (rank, False), taken, call, arguments)
        return nbytes

    def tell(self, rank: int, call: Callable[..., object], *arguments: object) -> None:
        """Send a control message to a worker, without bytes or costs, after all earlier frames."""
        self._outward.send(rank, 0, self._arrive, (rank, False), 0.0, call, arguments)

    def answer(self, rank: int, time: float, call: Callable[..., object], *arguments: object) -> None:
        """Send a worker's control message to the master at `time`, without bytes or costs, after the worker's earlier frames."""
        self._loop.at(time, self._inward.send, rank, 0, self._arrive, (rank, True), 0.0, call, arguments)

    def cut(self, rank: int) -> None:
        """Discard all messages from and to `rank` that have not passed the master's link."""
        self._cut.add(rank)
        self._inward.cut(rank)
        self._outward.cut(rank)

    def _transfer(self, source: int, target: int, nbytes: int) -> None:
        self.sent[source] += nbytes
        self.received[target] += nbytes

    def _threads(self, source: int, target: int, nbytes: int) -> float:
        """Return the time at which the MPI threads of both ends have finished with a frame."""
        host, now = self._host, self._loop.now
        self._free[source] = sent = max(now, self._free[source]) + host.message + nbytes * host.sends
        self._free[target] = taken = max(now, self._free[target]) + host.message + nbytes * host.takes
        return max(sent, taken)

    def _arrive(self, way: tuple[int, bool], taken: float, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        """Deliver a frame after all earlier frames between these ranks in this direction."""
        self._latest[way] = time = max(self._loop.now, taken, self._latest.get(way, 0.0))
        self._loop.at(time + self._half_trip, call, *arguments)
