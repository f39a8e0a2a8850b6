"""The master in virtual time: the rules and membership of a real job, and lanes whose work takes the seconds in the profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from psnode.config import Config
from psnode.exchange.shard.consistency import rule_of
from psnode.exchange.shard.executor import most_lanes
from psnode.exchange.shard.rounds import Origin, Slot
from psnode.jobs.planning.profile import Profile, SchemeCosts
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.message_paths import MessagePaths
from psnode.jobs.simulating.simulated_membership import SimulatedRounds, membership_of
from psnode.jobs.simulating.simulated_spans import SimulatedSpans
from psnode.jobs.simulating.simulated_worker import SimulatedWorker, WorkerReport
from psnode.jobs.simulating.work_lanes import WorkLanes
from psnode.plans.roles import MASTER
from psnode.records.history import AddedGradient

_FIRST_ROUNDS = 3  # rounds that count as declared pauses, as in psnode.master.loop


@dataclass
class SimulatedVersion:
    """A version of the weights that a round has made.

    `number`: counted from 1. `finished`: the time in seconds at which it was made. `added`: by group, the gradients in it. `up`:
    bytes of the gradients that were computed on the previous version. `down`: bytes of this version's weights. `dropped`: number
    of frames that were not used while the round was open. `decode`, `update`: seconds of the lanes.
    """

    number: int
    finished: float = 0.0
    added: list[tuple[AddedGradient, ...]] = field(default_factory=list)
    up: int = 0
    down: int = 0
    dropped: int = 0
    decode: float = 0.0
    update: float = 0.0

    @property
    def contributors(self) -> set[int]:
        """The workers that contributed at least one group to the version."""
        return {gradient.rank for group in self.added for gradient in group}


class SimulatedMaster:
    """The master of a job of `workers` that ends after `steps` versions.

    Rounds, the consistency rule, the members, deadlines and flow control are those of a real job, with a clock of virtual time.
    There are no spares and no checkpoints.
    """

    def __init__(
        self, loop: EventLoop, paths: MessagePaths, profile: Profile, costs: SchemeCosts, scenario: Scenario, config: Config,
        steps: int, spans: SimulatedSpans,
    ) -> None:  # fmt: skip
        self._spans, self._loop, self._paths, self._costs, self._steps = spans, loop, paths, costs, steps
        self._whole = profile.nbytes
        self.workers: dict[int, SimulatedWorker] = {}
        self._free = 0.0  # the time at which the main thread has handled all frames
        self._lanes = WorkLanes(loop, most_lanes(scenario.cores, len(costs.groups)))
        rule = rule_of(config, scenario.workers)
        self.goes_on = rule.rounds_go_on
        self._rounds = SimulatedRounds(
            map(Slot, range(len(costs.groups))), rule, by_rank=config.aggregate_order == "rank", add=self._add, close=self._close
        )
        self._membership, self.events = membership_of(
            loop, paths, self.workers, self._rounds, rule, config,
            ranks=range(1, scenario.workers + 1), weights=self._whole,
        )  # fmt: skip
        self._state, self._flow_control = self._membership.job_state, self._membership.flow_control
        self.versions = [SimulatedVersion(number) for number in range(1, steps + 2)]  # the last one is never made
        self._reports: dict[tuple[int, int], WorkerReport] = {}
        self._unfinished: set[int] = set()
        self._readers: list[int] = []
        self._watched = float("inf")  # the time at which deadlines are checked next

    @property
    def finished(self) -> list[SimulatedVersion]:
        """The versions that have been made."""
        return self.versions[: self._state.version]

    @property
    def stop_reason(self) -> str | None:
        """The reason why the job ended before the last step; None if it took all steps."""
        return self._state.stop_reason

    def begin(self) -> None:
        """Open the first round."""
        self._rounds.admit(self._membership.live, 0)
        self._publish(first=True)

    # messages

    def hear_gradient(self, rank: int, group: int, version: int) -> None:
        """Take a frame. The main thread handles frames one after another."""
        self._free = max(self._loop.now, self._free) + self._costs.bookkeeping
        self._loop.at(self._free, self._handle, Origin(Slot(group), rank, version))

    def hear_answer(self, rank: int, number: int) -> None:
        """Take the answer of `rank` to question `number`, after all earlier frames are handled."""
        self._loop.at(max(self._loop.now, self._free), self._handle_answer, rank, number)

    def _handle_answer(self, rank: int, number: int) -> None:
        self._membership.members.hear(rank)
        self._membership.hear_answer(rank, number)
        self._end_if_deserted()

    def count(self, version: int, nbytes: int) -> None:
        """Count the bytes of a frame that a worker sends in its step on `version`."""
        self.versions[version].up += nbytes

    def report(self, rank: int, version: int, report: WorkerReport) -> None:
        """Store the figures of a worker's step."""
        self._reports[rank, version] = report

    def lose(self, rank: int) -> None:
        """Handle the news that `rank` has died."""
        self._membership.lose(rank, "its process has ended")
        self._end_if_deserted()

    def _handle(self, origin: Origin) -> None:
        self._membership.members.hear(origin.rank, origin.version + 1)
        if origin.rank in self._membership.live and not self._rounds.offer(origin, origin):
            self.versions[self._state.version].dropped += 1

    # rounds

    def _add(self, origin: Origin) -> None:
        group = origin.slot.group
        self.versions[self._state.version].decode += self._costs.groups[group].decode
        self._lanes.submit(group, self._costs.groups[group].decode, self._note_addition, origin)

    def _note_addition(self, origin: Origin) -> None:
        group = origin.slot.group
        self._added[group].append(origin)
        self._span("decode", group, self._costs.groups[group].decode, sender=origin.rank)

    def _close(self, slot: Slot) -> None:
        self.versions[self._state.version].update += self._costs.groups[slot.group].update
        self._lanes.submit(slot.group, self._costs.groups[slot.group].update, self._send_weights, slot.group)

    def _send_weights(self, group: int) -> None:
        """Send a group's weights, and complete the version if this is its last group."""
        made, nbytes = self._state.version + 1, self._costs.groups[group].down
        self._span("update", group, self._costs.groups[group].update, version=made)
        for rank in self._readers:
            self._flow_control.sent([rank], nbytes)
            self.versions[made - 1].down += self._paths.down(rank, nbytes, self.workers[rank].hear_weights, made, group)
        self._unfinished.discard(group)
        if not self._unfinished:
            self._complete(self.versions[made - 1])
            self._publish()

    def _span(self, name: str, group: int, seconds: float, **facts: int) -> None:
        now = self._loop.now
        self._spans.add(MASTER, f"lane-{self._lanes.lane_of(group)}", name, now - seconds, now, group=group, **facts)

    def _complete(self, version: SimulatedVersion) -> None:
        version.finished = self._loop.now
        version.added = [tuple(AddedGradient(o.rank, o.version + 1, o.version) for o in group) for group in self._added]
        self._state.round = self._state.round.following

    def _publish(self, *, first: bool = False) -> None:
        """Publish the complete version and open the next round, in the order of psnode.master.loop.Master."""
        version, members = self._state.version, self._membership.members
        self._state.stopping = self._state.is_over(self._steps)
        self._unfinished = set(range(len(self._costs.groups)))
        self._added: list[list[Origin]] = [[] for _ in self._costs.groups]
        members.restart_silence(self._rounds.idle)
        released = [rank for rank in self._membership.release() if not self._state.stopping]
        returned = [] if self._state.stopping else list(members.readmit())
        for rank in returned:
            self.events.tell("returned", version, rank)
        for rank in (*released, *returned):
            self._send_whole(rank, version)
        self._rounds.admit([rank for rank in (*released, *returned) if rank in self._membership.live], version)
        self._membership.timer.begin(pause=version < _FIRST_ROUNDS or bool(returned))
        ranks = self._membership.followers
        self._membership.ask(ranks)
        for rank in ranks if not first else ():
            self._paths.tell(rank, self.workers[rank].hear_complete, version)
        if self._state.stopping:
            self._loop.stop()
            return
        self._membership.hold(ranks)
        self._readers = self._membership.followers
        self._rounds.open(version)
        self._membership.suspend_silent()
        self._watch()
        self._end_if_deserted()

    def _send_whole(self, rank: int, version: int) -> None:
        self._flow_control.sent([rank], self._whole)
        nbytes = self._paths.down(rank, self._whole, self.workers[rank].hear_whole, version)
        self.versions[max(0, version - 1)].down += nbytes

    # deadlines

    def _watch(self) -> None:
        """Schedule a check of the deadlines for the time when the next deadline passes."""
        due = self._membership.wait_until
        if due < self._watched:
            self._watched = due
            self._loop.at(due, self._look, due)

    def _look(self, due: float) -> None:
        if due != self._watched:
            return
        self._watched = float("inf")
        if self._loop.now >= self._membership.wait_until:
            self._membership.on_overdue(frozenset(), held=False)
            self._end_if_deserted()
        self._watch()

    def _end_if_deserted(self) -> None:
        """End the job if no worker is left and the open round has no gradient."""
        if not self._membership.live and self._rounds.untouched and self._state.stop_reason is not None:
            self._loop.stop()

    def reports_of(self, version: SimulatedVersion) -> Sequence[WorkerReport]:
        """Return the reports of the workers whose gradients are in a version."""
        steps = {(gradient.rank, gradient.based) for group in version.added for gradient in group}
        return [self._reports[step] for step in sorted(steps) if step in self._reports]
