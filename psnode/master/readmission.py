"""Ranks that enter with a version: held or suspended workers that come back, and spares that take empty places."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from psnode.exchange.shard.handle import ShardHandle
from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.events import Events
from psnode.master.example_dealing import ExampleDealing
from psnode.master.job_state import JobState
from psnode.master.membership import Membership
from psnode.master.recorder import StepRecorder
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Flag, Kind


class LastGradient(NamedTuple):
    """The part of VERSION_COMPLETE about a worker's last gradient: its step, and its groups that will never be used."""

    step: int
    unused: list[int]


@dataclass
class Readmission:
    """The ranks that enter with the complete version, and the weights and messages that they get before VERSION_COMPLETE.

    `entering`: the ranks that take part in the next round but did not take part in the last one. `released`: the ranks that
    were held and now get this version whole. `earlier`: for each rank that returns or is promoted now, its last gradient.
    `dealt`: True if shares of the examples have changed since the start of the job.
    """

    link: FrameChannel
    job_state: JobState
    membership: Membership
    shard: ShardHandle
    pending: PendingCheckpoints
    recorder: StepRecorder
    dealing: ExampleDealing
    events: Events
    entering: set[int] = field(default_factory=set)
    released: set[int] = field(default_factory=set)
    earlier: dict[int, LastGradient] = field(default_factory=dict)
    dealt: bool = False

    @property
    def ranks(self) -> set[int]:
        """The ranks that enter with this version, or that were held and are released with it."""
        return self.entering | self.released

    def clear(self) -> None:
        """Forget the ranks of this version, after their messages have been sent."""
        self.entering.clear()
        self.released.clear()
        self.earlier.clear()

    def catch_up(self) -> None:
        """Send the whole weights of the complete version to the held ranks that have answered.

        If no round follows, send them to all held ranks.
        """
        holds = self.membership.release()
        now, ranks = self.job_state.round, sorted(holds)
        version, self.released = now.version, set(ranks)
        if not ranks:
            return
        self._send_whole(ranks)
        for rank in ranks:
            hold = holds[rank]
            if hold.version < version:
                self.earlier[rank] = LastGradient(now.at(hold.version).finished, hold.unused)
            for earlier in self.pending.awaiting(rank):
                if hold.version <= earlier < version:
                    self.link.send(rank, Kind.ASK, step=earlier, version=version, flags=Flag.CHECKPOINT)
        if not self.job_state.stopping:
            self.shard.admit([rank for rank in ranks if rank in self.membership.live], version)

    def send_past(self) -> None:
        """Send the whole weights of the complete version to ranks that may lack parts of them.

        Parts may be missing because a rank on the route was lost or silent.
        """
        ranks, self.membership.cut_off = self.membership.cut_off.intersection(self.membership.followers), set()
        if ranks:
            self._send_whole(sorted(ranks))

    def readmit(self) -> None:
        """Readmit the suspended workers from which a frame has come, and send them the whole weights of the complete version.

        A readmitted worker takes part in the next round, or becomes a spare if its place is taken. Empty places go to
        spares, which have received all versions.
        """
        returned = {rank: LastGradient(*last) for rank, last in self.membership.members.readmit().items()}
        self.earlier |= returned
        self.entering = set(returned)
        for rank in returned:
            waits = rank in self.membership.members.spares
            reason = "its place is taken, so it is a spare now" if waits else ""
            self.events.tell("returned", self.job_state.version, rank, reason)
            self._send_whole([rank])
        self.promote()

    def promote(self) -> None:
        """Move spares into empty places, and admit all entering live workers to the next round."""
        for rank in self.membership.members.promote(self.membership.flow_control.held):
            former = self.dealing.hand_over(rank, self.membership.live - {rank})
            self.events.tell("promoted", self.job_state.version, rank, f"in the place of rank {former}")
            self.dealt = True
            self.entering.add(rank)
            self.earlier.setdefault(rank, LastGradient(self.job_state.round.finished, []))
            if statistics := self.pending.statistics:
                self.link.send(rank, Kind.STATE, statistics, step=self.job_state.round.finished, version=self.job_state.version)
        for rank in self.entering & self.membership.live:
            self.recorder.found(rank)
            self.shard.admit([rank], self.job_state.version)

    def _send_whole(self, ranks: Iterable[int]) -> None:
        nbytes = self.shard.send_whole(readers := list(ranks), self.job_state.version)
        self.recorder.down(nbytes, self.job_state.round.finished)
        self.recorder.links.send_whole(readers)
