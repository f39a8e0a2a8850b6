"""The master of a job in virtual time. It uses the rules and the membership of a real job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from psnode.config import Config
from psnode.errors import PsnodeError
from psnode.exchange.routes.route import Route
from psnode.exchange.shard.consistency import rule_of
from psnode.exchange.shard.rounds import Origin
from psnode.jobs.planning.profile import SchemeCosts
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.simulating.disturbances import Standstill
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.host_cores import Cores
from psnode.jobs.simulating.message_paths import MessagePaths
from psnode.jobs.simulating.simulated_flush import SimulatedFlush
from psnode.jobs.simulating.simulated_handle import SimulatedHandle
from psnode.jobs.simulating.simulated_membership import membership_of
from psnode.jobs.simulating.simulated_shard import SimulatedShard
from psnode.jobs.simulating.simulated_spans import SimulatedSpans
from psnode.jobs.simulating.simulated_worker import SimulatedWorker, WorkerReport
from psnode.plans.roles import MASTER
from psnode.records.history import AddedGradient

_FIRST_ROUNDS = 3  # rounds that count as declared pauses, as in psnode.master.loop


@dataclass
class SimulatedVersion:
    """A version of the weights that a round of a simulated job has made.

    `number`: counted from 1. `finished`: the time in seconds at which it was made. `added`: by group, the gradients in it.
    `up`: bytes of the gradients that were computed on the previous version. `down`: bytes of this version's weights.
    `dropped`: number of frames with gradients that were not used while the round was open. `decode`, `update`: seconds of the
    lanes.
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
    """The master of a job of `scenario.workers` workers, which ends after `steps` versions. It has the shards of all ranks.

    Rounds, the consistency rule, the members, deadlines and flow control are those of a real job, with a clock of virtual
    time. There are no spares and no checkpoints. `routes`: the route of each group. `cores`: by rank, the cores that a
    shard shares with the worker on its rank. `whole`: bytes of all weights together. `sizes`: the number of coordinates of
    each group; empty if the master is the root of all groups. `standstills`: the pauses of all workers.
    """

    def __init__(
        self, loop: EventLoop, paths: MessagePaths, costs: SchemeCosts, scenario: Scenario, config: Config, steps: int, *,
        routes: Sequence[Route], cores: Mapping[int, Cores], whole: int, sizes: Sequence[int], spans: SimulatedSpans,
        standstills: Sequence[Standstill] = (),
    ) -> None:  # fmt: skip
        self._loop, self._paths, self._routes, self._steps, self._whole = loop, paths, routes, steps, whole
        self.workers: dict[int, SimulatedWorker] = {}
        rule = rule_of(config, scenario.workers)
        self.goes_on = rule.rounds_go_on
        roots = sorted({root for route in routes for root in route.roots})
        self.shards = {
            root: SimulatedShard(
                root, [group for group, route in enumerate(routes) if root in route.roots], routes, costs, loop, paths,
                rule=rule, by_rank=config.aggregate_order == "rank", lanes_of_cores=scenario.cores, cores=cores.get(root),
                workers=self.workers, listener=self, spans=spans, standstills=standstills,
            )
            for root in roots
        }  # fmt: skip
        self._parts = {root: 4 * sum(sizes[group] for group in shard.groups) for root, shard in self.shards.items() if sizes}
        self._handle = SimulatedHandle(
            self.shards, routes, paths,
            flush=SimulatedFlush(self.shards, paths, [group.up for group in costs.groups], self.count),
            leave=lambda rank: loop.at(loop.now, self._leave, rank), send_whole=self._send_whole,
        )  # fmt: skip
        self._membership, self.events = membership_of(
            loop, paths, self.workers, self._handle, rule, config,
            ranks=range(1, scenario.workers + 1), weights=whole,
        )  # fmt: skip
        self._state, self._flow_control = self._membership.job_state, self._membership.flow_control
        self.versions = [SimulatedVersion(number) for number in range(1, steps + 2)]  # the last one is never made
        self._reports: dict[tuple[int, int], WorkerReport] = {}
        self._unfinished: set[tuple[int, int]] = set()  # roots and groups
        self._added: list[dict[int, tuple[AddedGradient, ...]]] = []  # by group and root
        self._watched = inf  # the time at which deadlines are checked next

    @property
    def finished(self) -> list[SimulatedVersion]:
        """The versions that have been made."""
        return self.versions[: self._state.version]

    @property
    def stop_reason(self) -> str | None:
        """The reason why the job ended before the last step; None if it took all steps."""
        return self._state.stop_reason

    @property
    def live(self) -> frozenset[int]:
        """The workers whose gradients count."""
        return self._membership.live

    def begin(self) -> None:
        """Open the first round."""
        self._handle.admit(self._membership.live, 0)
        self._publish(first=True)

    # messages

    def hear(self, origin: Origin) -> None:
        """Record that a gradient of `origin.rank` has come to the master's own shard. So this rank does not count as silent."""
        self._membership.members.hear(origin.rank, origin.version + 1)

    def hear_report(self, rank: int, version: int) -> None:
        """Record that worker `rank` has reported its step on `version`, so that it does not count as silent.

        Workers report if other ranks than the master are roots, because the master may then get no gradients from them.
        """
        self._membership.members.hear(rank, version + 1)

    def hear_answer(self, rank: int, number: int) -> None:
        """Handle the answer of worker `rank` to question `number`, when the master's shard has handled all earlier frames."""
        if MASTER in self.shards:
            self.shards[MASTER].after_frames(self._handle_answer, rank, number)
        else:
            self._handle_answer(rank, number)

    def _handle_answer(self, rank: int, number: int) -> None:
        self._membership.members.hear(rank)
        self._membership.hear_answer(rank, number)
        self._end_if_deserted()

    def hear_closed(self, root: int, group: int, added: tuple[AddedGradient, ...]) -> None:
        """Take the news that the shard of `root` has updated a group, and complete the version if it is the last one."""
        if (root, group) not in self._unfinished:
            return
        if any(set(other) != set(added) for other in self._added[group].values()):
            raise PsnodeError(f"rank {root} has added other gradients to group {group} than other ranks")
        self._added[group][root] = added
        self._finish([(root, group)])

    def _leave(self, rank: int) -> None:
        """Wait for no more updates of the shard of `rank`, which is lost, and forget its updates in the open round."""
        for roots in self._added:
            roots.pop(rank, None)
        self._finish([each for each in self._unfinished if each[0] == rank])

    def _finish(self, updated: Iterable[tuple[int, int]]) -> None:
        """Stop waiting for the updates `updated`. If no other update is awaited, complete the version and publish it."""
        before = len(self._unfinished)
        self._unfinished.difference_update(updated)
        if before and not self._unfinished:
            self._complete(self.versions[self._state.version])
            self._publish()

    def owe(self, rank: int, nbytes: int) -> None:
        """Count bytes of weights that the master sends to `rank`, for flow control."""
        self._flow_control.sent([rank], nbytes)

    def count_weights(self, version: int, nbytes: int) -> None:
        """Count the bytes of a frame with weights of `version`."""
        self.versions[version - 1].down += nbytes

    def drop(self, version: int) -> None:
        """Count a frame with a gradient that was not used in the round of `version`."""
        self.versions[version].dropped += 1

    def count(self, version: int, nbytes: int) -> None:
        """Count the bytes of a frame that a worker sends in its step on `version`."""
        self.versions[version].up += nbytes

    def report(self, rank: int, version: int, time: float, report: WorkerReport) -> None:
        """Store the figures of the step of worker `rank` on `version`, which ends at `time`."""
        self._reports[rank, version] = report
        if self._handle.is_remote:
            self._paths.answer(rank, time, self.hear_report, rank, version)

    def lose(self, rank: int) -> None:
        """Remove `rank` from the job, because the master has learned that it is dead."""
        self._membership.lose(rank, "its process has ended")
        self._end_if_deserted()

    # rounds

    def _complete(self, version: SimulatedVersion) -> None:
        version.finished = self._loop.now
        version.added = [next(iter(roots.values())) for roots in self._added]
        version.decode = max(shard.decode for shard in self.shards.values())
        version.update = max(shard.update for shard in self.shards.values())
        self._state.round = self._state.round.following

    def _publish(self, *, first: bool = False) -> None:
        """Publish the complete version and open the next round, in the same order of actions as psnode.master.loop.Master."""
        version, members = self._state.version, self._membership.members
        self._state.stopping = self._state.is_over(self._steps)
        self._unfinished = {(root, group) for root, shard in self.shards.items() for group in shard.groups}
        self._added = [{} for _ in self._routes]
        members.restart_silence(self._handle.idle)
        released = [rank for rank in self._membership.release() if not self._state.stopping]
        returned = [] if self._state.stopping else list(members.readmit())
        for rank in returned:
            self.events.tell("returned", version, rank)
        cut_off, self._membership.cut_off = self._membership.cut_off.intersection(self._membership.followers), set()
        self._send_whole([*released, *sorted(cut_off - {*released, *returned}), *returned], version)
        self._handle.admit([rank for rank in (*released, *returned) if rank in self._membership.live], version)
        self._membership.timer.begin(pause=version < _FIRST_ROUNDS or bool(returned))
        ranks = self._membership.followers
        self._membership.ask(ranks)
        for rank in ranks if not first else ():
            self._paths.tell(rank, self.workers[rank].hear_complete, version)
        if self._state.stopping:
            for shard in self.shards.values():
                shard.settle()
            self._loop.stop()
            return
        self._membership.hold(ranks)
        self._handle.open(version, self._membership.followers)
        self._membership.suspend_silent()
        self._watch()
        self._end_if_deserted()

    def _send_whole(self, ranks: Sequence[int], version: int) -> int:
        """Make all shards send `ranks` their parts of the weights of `version`. Return the bytes."""
        total = 0
        for rank in ranks:
            missing = set(self.shards)
            for root in self.shards:
                nbytes = self._parts.get(root, self._whole)
                if root == MASTER:
                    self.owe(rank, nbytes)
                total += self._paths.down(rank, nbytes, self._take_part, rank, version, root, missing, source=root)
        self.versions[max(0, version - 1)].down += total
        return total

    def _take_part(self, rank: int, version: int, root: int, missing: set[int]) -> None:
        """Record that worker `rank` has got the part of the weights of `version` that the shard on `root` sent.

        `missing`: the roots of the parts that have not arrived yet. If there are none left, the worker gets the whole
        weights.
        """
        missing.discard(root)
        if not missing:
            self.workers[rank].hear_whole(version)

    # deadlines

    def _watch(self) -> None:
        """Schedule a check of the deadlines for the time at which the next deadline ends."""
        due = self._membership.wait_until
        if due < self._watched:
            self._watched = due
            self._loop.at(due, self._look, due)

    def _look(self, due: float) -> None:
        if due != self._watched:
            return
        self._watched = inf
        if self._loop.now >= self._membership.wait_until:
            self._membership.on_overdue(frozenset(), held=False)
            self._end_if_deserted()
        self._watch()

    def _end_if_deserted(self) -> None:
        """End the job if no worker is left and the open round has no gradient."""
        if not self._membership.live and self._handle.untouched and self._state.stop_reason is not None:
            self._loop.stop()

    def reports_of(self, version: SimulatedVersion) -> Sequence[WorkerReport]:
        """Return the reports of the workers whose gradients are in a version."""
        steps = {(gradient.rank, gradient.based) for group in version.added for gradient in group}
        return [self._reports[step] for step in sorted(steps) if step in self._reports]
