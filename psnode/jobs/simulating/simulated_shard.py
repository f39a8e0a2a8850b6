"""A shard in virtual time: the rounds of the groups of one root, and lanes whose work takes the seconds in the profile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from psnode.exchange.routes.route import Route
from psnode.exchange.shard.consistency import Rule
from psnode.exchange.shard.executor import most_lanes
from psnode.exchange.shard.rounds import Origin, Rounds, Slot
from psnode.jobs.planning.profile import SchemeCosts
from psnode.jobs.simulating.disturbances import Standstill, of_rank, through
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.host_cores import Cores, FreeThread, SharingThread, WorkThread
from psnode.jobs.simulating.message_paths import MessagePaths
from psnode.jobs.simulating.simulated_spans import SimulatedSpans
from psnode.jobs.simulating.simulated_worker import SimulatedWorker
from psnode.jobs.simulating.work_lanes import WorkLanes
from psnode.plans.roles import MASTER
from psnode.records.history import AddedGradient


class ShardListener(Protocol):
    """The methods of the master that a shard calls."""

    @property
    def live(self) -> frozenset[int]:
        """The workers whose gradients count."""

    def hear(self, origin: Origin) -> None:
        """Record that a gradient of the rank `origin.rank` has come to the master's own shard."""

    def hear_closed(self, root: int, group: int, added: tuple[AddedGradient, ...]) -> None:
        """Record that the shard on the rank `root` has updated a group."""

    def owe(self, rank: int, nbytes: int) -> None:
        """Count bytes of weights that the master sends to `rank`, for flow control."""

    def count_weights(self, version: int, nbytes: int) -> None:
        """Count the bytes of a frame with weights of `version`."""

    def drop(self, version: int) -> None:
        """Count a frame with a gradient that was not used in the round of `version`."""


class SimulatedShard:
    """The shard on `rank`, which is a root of `groups`.

    `cores`: the cores that its threads share with the worker on this rank; None if its threads never wait for a core.
    `workers`: the workers by rank; the caller fills it before the first round opens. `standstills`: pauses of workers, during
    which they do not pass weights on. `decode`, `update`: seconds of the lanes in the open round.
    """

    def __init__(
        self,
        rank: int,
        groups: Sequence[int],
        routes: Sequence[Route],
        costs: SchemeCosts,
        loop: EventLoop,
        paths: MessagePaths,
        *,
        rule: Rule,
        by_rank: bool,
        lanes_of_cores: int,
        cores: Cores | None,
        workers: Mapping[int, SimulatedWorker],
        listener: ShardListener,
        spans: SimulatedSpans,
        standstills: Sequence[Standstill] = (),
    ) -> None:
        self.rank, self.groups = rank, tuple(groups)
        self._routes, self._costs, self._loop, self._paths = routes, costs, loop, paths
        self._workers, self._listener, self._spans, self._standstills = workers, listener, spans, standstills
        self._thread: WorkThread = FreeThread(loop) if cores is None else SharingThread(cores)
        self._lanes = WorkLanes(loop, most_lanes(lanes_of_cores, len(groups)), groups=groups, cores=cores)
        self.rounds = Rounds[Origin](map(Slot, groups), rule, by_rank=by_rank, add=self._add, close=self._close)
        self._version = -1  # of the open round, or of the last round
        self._readers: Collection[int] = ()
        self._added: dict[int, list[Origin]] = {}
        self._heard: set[Origin] = set()  # gradients of live ranks that have come for the open round and later ones
        self._copied = any(len(routes[group].roots) > 1 for group in groups)
        self._early: list[Origin] = []  # gradients whose round is not open yet on this rank
        self._passing: set[tuple[int, int, int]] = (
            set()
        )  # frames on their way to ranks that pass them on: rank, version and group
        self.decode = self.update = 0.0

    def open(self, version: int, readers: Sequence[int]) -> None:
        """Open the round of `version`, whose updated weights go to `readers`."""
        self._version, self._readers = version, frozenset(readers)
        self._added = {group: [] for group in self.groups}
        self._heard = {origin for origin in self._heard if origin.version >= version}
        self.decode = self.update = 0.0
        self.rounds.open(version)
        early, self._early = self._early, []
        for origin in early:
            self._handle(origin)

    def is_at(self, version: int) -> bool:
        """Return True if `version` is that of the open round or, if no round is open, that of the last one."""
        return self._version == version

    def hear_gradient(self, rank: int, group: int, version: int) -> None:
        """Take a frame with a gradient of a group, which worker `rank` computed on `version`.

        The shard's thread handles one frame after another.
        """
        origin = Origin(Slot(group), rank, version)
        if rank in self._listener.live:
            self._heard.add(origin)
        self._thread.run(self._costs.bookkeeping, self._handle, origin)

    def stands_still(self, seconds: float) -> bool:
        """Return True if the processes of this rank do nothing now and for more than `seconds` from now on."""
        return through(of_rank(self._standstills, self.rank), self._loop.now, 0.0) > self._loop.now + seconds

    def after_frames(self, call: Callable[..., object], *arguments: object) -> None:
        """Call `call` with `arguments` when the shard's thread has handled all frames that came before."""
        self._thread.run(0.0, call, *arguments)

    def _handle(self, origin: Origin) -> None:
        if self.rank == MASTER:
            self._listener.hear(origin)
        if origin.version > self._version:
            self._early.append(origin)
        elif origin.rank in self._listener.live or (self._copied and origin in self._heard):
            self._offer(origin)

    def _offer(self, origin: Origin) -> None:
        if not self.rounds.offer(origin, origin) and origin.rank in self._listener.live:
            self._listener.drop(self._version)

    def lacks(self, rank: int, version: int) -> list[int]:
        """Return the groups whose gradient of `rank` for the round of `version` has not come, also before this round is open."""
        return [group for group in self.groups if Origin(Slot(group), rank, version) not in self._heard]

    def take_of_lost(self, rank: int, group: int, version: int) -> None:
        """Take the gradient of a lost worker that another shard has passed on."""
        self._thread.run(self._costs.bookkeeping, self._offer, Origin(Slot(group), rank, version))

    def withdraw(self, rank: int) -> None:
        """Wait for no more gradients of a lost worker, once all earlier frames are handled."""
        self._thread.run(0.0, self.rounds.withdraw, rank)

    def pass_no_more(self, rank: int) -> None:
        """Expect a lost worker to pass no weights on."""
        self._passing = {frame for frame in self._passing if frame[0] != rank}

    def _add(self, origin: Origin) -> None:
        group = origin.slot.group
        self.decode += self._costs.groups[group].decode
        self._lanes.submit(group, self._costs.groups[group].decode, self._note_addition, origin)

    def _note_addition(self, origin: Origin) -> None:
        group = origin.slot.group
        self._added[group].append(origin)
        self._span("decode", group, sender=origin.rank)

    def _close(self, slot: Slot) -> None:
        self.update += self._costs.groups[slot.group].update
        self._lanes.submit(slot.group, self._costs.groups[slot.group].update, self._send_weights, slot.group)

    def _send_weights(self, group: int) -> None:
        """Send a group's weights, and tell the master that the group is closed."""
        made = self._version + 1
        self._span("update", group, version=made)
        passed_on, used = self._routes[group].of_root(self.rank).sends(self._readers)
        for rank in (*passed_on, *used):
            self._send(self.rank, rank, group, made, is_passed_on=rank in passed_on)
        added = tuple(AddedGradient(o.rank, o.version + 1, o.version) for o in self._added[group])
        if self.rank == MASTER:
            self._listener.hear_closed(self.rank, group, added)
        else:
            self._paths.answer(self.rank, self._loop.now, self._listener.hear_closed, self.rank, group, added)

    def _send(self, source: int, rank: int, group: int, made: int, *, is_passed_on: bool) -> None:
        if is_passed_on and not (self._paths.is_cut(source) or self._paths.is_cut(rank)):
            self._passing.add((rank, made, group))
        hear = self._pass_on if is_passed_on else self._workers[rank].hear_weights
        way = (rank, made, group) if is_passed_on else (made, group)
        nbytes = self._costs.groups[group].down
        if source == MASTER:
            self._listener.owe(rank, nbytes)
        self._listener.count_weights(made, self._paths.down(rank, nbytes, hear, *way, source=source))

    def _pass_on(self, rank: int, made: int, group: int) -> None:
        """Make `rank` pass a group's weights, which have come to it, on to its heirs in the tree as soon as it does not pause."""
        awake = through(of_rank(self._standstills, rank), self._loop.now, 0.0)
        if awake > self._loop.now:
            self._loop.at(awake, self._pass_on, rank, made, group)
            return
        self._passing.discard((rank, made, group))
        for heir in self._routes[group].heirs(rank):
            self._send(rank, heir, group, made, is_passed_on=True)
        self._workers[rank].hear_weights(made, group)

    def settle(self) -> None:
        """Count the bytes of frames with the last version that ranks have not yet passed on when the simulated job ends."""
        ahead = list(self._passing)
        while ahead:
            rank, made, group = ahead.pop()
            for heir in self._routes[group].heirs(rank):
                self._listener.count_weights(made, self._paths.count(rank, heir, self._costs.groups[group].down))
                ahead.append((heir, made, group))

    def _span(self, name: str, group: int, **facts: int) -> None:
        start = self._lanes.begun(group)
        self._spans.add(self.rank, f"lane-{self._lanes.lane_of(group)}", name, start, self._loop.now, group=group, **facts)
