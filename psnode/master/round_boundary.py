"""Messages at the end of a version: members of the next round, owners of the examples, and unused gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from psnode.exchange.flow_control import FlowControl, Hold
from psnode.exchange.shard.consistency import Rule
from psnode.exchange.shard.handle import ShardHandle
from psnode.exchange.shard.median_clipping import Clipped
from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.events import Events
from psnode.master.job_state import JobState
from psnode.master.membership import Members
from psnode.master.recorder import StepRecorder
from psnode.master.sharding import Sharding
from psnode.plan.groups import Plan
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Flag, Kind, pack_factors, pack_groups
from psnode.records import retention
from psnode.records.directory import RunDirectory
from psnode.records.history import AddedGradient


@dataclass
class RoundBoundary:
    """The boundary between two rounds. For the master's main thread, while no group is being sent.

    `entering`: workers admitted this round, with their last step and its unused groups.
    """

    link: FrameChannel
    run: RunDirectory
    job_state: JobState
    members: Members
    plan: Plan
    rule: Rule
    shard: ShardHandle
    pending: PendingCheckpoints
    recorder: StepRecorder
    sharding: Sharding
    events: Events
    flow_control: FlowControl
    entering: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    _clipped: dict[int, tuple[int, dict[int, float]]] = field(default_factory=dict)  # by rank: a step, and factors by group
    _released: dict[int, Hold] = field(default_factory=dict)  # with this version
    _dealt: bool = False  # since the start
    _recorded: bool = True  # the deal, in config.json

    def count(self, contributors: Iterable[tuple[int, int]]) -> bool:
        """The version that is complete was made of these gradients; whether that may have moved the run's end."""
        self.sharding.count(self.job_state.version, contributors)
        if self.sharding.applied is None:
            return False
        self.recorder.count_epochs(self.sharding.epochs.steps, self.sharding.epochs.epoch_offset)
        return True

    def begin_checkpoint(self, until: float) -> bool:
        """Begin the checkpoint of the version that is complete; False if none is to be. `until`: see PendingCheckpoints.begin."""
        return self.pending.begin(self.job_state.version, self.members.live, until, self._facts)

    def keep(self) -> None:
        """Keep the version that is complete, for an end that comes amid the next."""
        self.pending.last_whole.keep(self.job_state.version, self._facts)

    @property
    def _facts(self) -> Mapping[str, object]:
        applied = {} if self.sharding.applied is None else self.sharding.applied.facts()
        return {**retention.UNKNOWN, **self.shard.facts(), **applied}

    def sent(self, ranks: Sequence[int], nbytes: int) -> None:
        """A group of the version to come has left for `ranks`, in `nbytes` in all."""
        if ranks:
            self.flow_control.sent(ranks, nbytes // len(ranks))

    def clip(self, group: int, clipped: Iterable[Clipped]) -> None:
        """Of these pushes of `group` a part was used: who sent them is told with the version, or when it is back."""
        for rank, step, factor in clipped:
            if self._clipped.get(rank, (0, {}))[0] != step:
                self._clipped[rank] = step, {}
            self._clipped[rank][1][group] = factor

    def hear_answer(self, rank: int, number: int) -> None:
        """`rank` has taken all that was sent before question `number`. If it was held, the open round does not wait for it."""
        if self.flow_control.answer(rank, number) and rank in self.members.live and not self.job_state.stopping:
            self.shard.excuse(rank, self.job_state.version + 1)

    def catch_up(self) -> None:
        """Send the whole weights of the complete version to held workers that have answered; to all held ones, if it is the
        last.
        """
        self._released = self.flow_control.release(everybody=self.job_state.stopping)
        version, ranks = self.job_state.version, sorted(self._released)
        if not ranks:
            return
        self._send_whole(ranks)
        for rank in ranks:
            for earlier in self.pending.awaiting(rank):
                if self._released[rank].version <= earlier < version:
                    self.link.send(rank, Kind.ASK, step=earlier, version=version, flags=Flag.CHECKPOINT)
        if not self.job_state.stopping:
            self.shard.admit([rank for rank in ranks if rank in self.members.live], version)

    def _send_whole(self, ranks: list[int]) -> None:
        nbytes = self.shard.send_whole(ranks, self.job_state.version)
        self.recorder.down(nbytes, self.job_state.version)
        self.sent(ranks, nbytes)

    def readmit(self) -> None:
        """Readmit suspended workers that were heard again: they get the whole weights of the complete version, and take part
        or wait.

        Empty places are taken by spares, which have followed all versions.
        """
        self.entering = self.members.readmit()
        for rank in self.entering:
            waits = rank in self.members.spares
            self.events.tell(
                "returned", self.job_state.version, rank, "its place is taken: a spare from here on" if waits else ""
            )
            self._send_whole([rank])
        self._promote()

    def _promote(self) -> None:
        """Admit those who enter, and spares in empty places."""
        for rank in self.members.promote(self.flow_control.held):
            former = self.sharding.hand_over(rank, self.members.live - {rank})
            self.events.tell("promoted", self.job_state.version, rank, f"in the place of rank {former}")
            self._dealt = True
            self.entering[rank] = self.job_state.version, []
            if statistics := self.pending.statistics:
                self.link.send(rank, Kind.STATE, statistics, step=self.job_state.version, version=self.job_state.version)
        for rank in self.entering.keys() & self.members.live:
            self.recorder.found(rank)
            self.shard.admit([rank], self.job_state.version)

    def pass_on(self) -> bool:
        """Give the open round, in which no worker is left and to which nothing was added, to spares; True if the deal changed.

        The version before it is closed once more.
        """
        self.catch_up()
        self._promote()
        renewed = self.deal()
        self.close(Flag.NONE, {})
        return renewed

    def break_off(self, until: float) -> None:
        """End the job with the version that is there: nothing was added to the open round, so that no step was taken.

        `until`: see PendingCheckpoints.begin.
        """
        self.job_state.stopping = True
        if self.pending.begun != self.job_state.version:
            self.begin_checkpoint(until)
        self.catch_up()
        self.close(Flag.STOP, {})
        self.pending.publish()

    def deal(self) -> bool:
        """Reshard at an epoch boundary if membership has changed.

        Who enters has to know of an earlier deal. Whether there was a new one.
        """
        informed = (self.entering.keys() | self._released.keys()) & self.members.live if self._dealt else set()
        if renewed := self.sharding.renew(self.job_state.version, self.members.live):
            self._dealt, informed = True, set(self.members.live - self.flow_control.held.keys())
            names = ", ".join(map(str, self.sharding.ranks))
            self.events.tell(
                "resharded", self.job_state.version, None, f"the examples of the epoch that begins are those of ranks {names}"
            )
            self._recorded = False
            self.recorder.count_epochs(self.sharding.epochs.steps, self.sharding.epochs.epoch_offset)
        if not self._recorded:  # where the disk is full, again with the next version: until then it takes no checkpoint either
            with contextlib.suppress(OSError):
                self.run.record(self.sharding.parts)
                self._recorded = True
        if informed:
            body = self.sharding.deal.to_bytes()
            self.link.send(sorted(informed), Kind.RESHARD, body, step=self.job_state.version, version=self.job_state.version)
        return renewed

    def left_out(self, added: Sequence[Iterable[AddedGradient]], forfeited: Container[int] = ()) -> dict[int, list[int]]:
        """By live worker the groups to which its gradient was not `added`, except gradients that are kept or `forfeited`."""
        ranks = [{each.rank for each in found} for found in added]
        keeps = self.rule.patient
        return {
            rank: [] if keeps or rank in forfeited else [group for group, there in enumerate(ranks) if rank not in there]
            for rank in self.members.live
        }

    def close(self, flags: Flag, left_out: Mapping[int, list[int]]) -> None:
        """Declare the version complete, to each worker with the groups of its gradient that were not used and never will be."""
        version = self.job_state.version
        frames: dict[tuple[int, bytes, Flag], list[int]] = {}
        for rank, held in self.flow_control.held.items():
            if held.version == version:
                held.unused = left_out.get(rank, [])
        ranks = sorted({*self.members.live, *self.members.spares} - self.flow_control.held.keys())
        self._ask(ranks)
        if ranks and self.sharding.applied is not None:
            self.link.send(ranks, Kind.EPOCH, step=self.sharding.applied.gradients, version=version)
        for rank in ranks:
            spare = rank in self.members.spares
            step, unused = self.entering.get(rank, (version, left_out.get(rank, [])))
            if (hold := self._released.get(rank)) is not None and hold.version < version:
                step, unused = hold.version, hold.unused
            told = flags & ~Flag.CHECKPOINT if spare or rank in self.entering else flags  # it was not there when that began
            told |= Flag.SPARE if spare else Flag.NONE
            frames.setdefault((step, pack_groups(unused, len(self.plan.groups)), told), []).append(rank)
        self._tell_factors(ranks)
        self.entering.clear()
        self._released.clear()
        for (step, body, told), readers in frames.items():
            self.link.send(readers, Kind.VERSION_COMPLETE, body, step=step, version=version, flags=told)
        if not self.job_state.stopping:
            self._hold(ranks)
            self.shard.send_to([rank for rank in ranks if rank not in self.flow_control.held])

    def _tell_factors(self, ranks: Iterable[int]) -> None:
        """Tell those whose last gradient was clipped by how much. A worker passes over a factor for an earlier step."""
        for rank in [rank for rank in ranks if rank in self._clipped]:
            step, factors = self._clipped.pop(rank)
            body = pack_factors(factors, len(self.plan.groups))
            self.link.send(rank, Kind.CLIP, body, step=step, version=self.job_state.version)

    def _watched(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if self.rule.rounds_go_on or rank in self.members.spares]

    def _ask(self, ranks: Iterable[int]) -> None:
        """Ask those who have much before them: before VERSION_COMPLETE, so that the answer comes before their next gradient."""
        asked = [rank for rank in self._watched(ranks) if self.flow_control.ask(rank, self.job_state.version)]
        self._put_question(asked, self.job_state.version, Flag.NONE)

    def _hold(self, ranks: Iterable[int]) -> None:
        """Send nothing more to those who have too much before them."""
        held = [rank for rank in self._watched(ranks) if self.flow_control.hold(rank, self.job_state.version + 1)]
        self._put_question(held, self.job_state.version + 1, Flag.HOLD)

    def _put_question(self, ranks: list[int], number: int, flags: Flag) -> None:
        if ranks:
            self.link.send(ranks, Kind.ASK, version=number, flags=flags)
