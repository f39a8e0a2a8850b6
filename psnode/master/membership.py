"""Decisions on which workers are awaited, suspended or lost, and the consequences for the open round and the job.

A suspended worker comes back between two rounds if a frame has come from it. Members.readmit (member_list.py) puts it back
on the list of live workers or of spares, and Readmission.readmit (readmission.py) sends it the whole weights of the complete
version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from psnode.config import Config
from psnode.config.amounts import counted
from psnode.config.effects import AUTO
from psnode.errors import NormError, TransportError, WireError
from psnode.exchange.flow_control import FlowControl, Hold
from psnode.exchange.shard.consistency import Rule
from psnode.exchange.shard.handle import ShardHandle
from psnode.exchange.shard.shard_events import Refused, Scaled
from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.deadlines import RoundTimer
from psnode.master.events import Events
from psnode.master.job_state import QUORUM, JobState
from psnode.master.member_list import STRIKES, Members
from psnode.master.recorder import StepRecorder
from psnode.protocol.channel import FrameChannel, RemoteFailureError
from psnode.protocol.wire import Flag, Kind

_ENDS = "the job ends, since every worker updates weights"
_ENDS_WITHOUT = "the job ends, since it has a part of the weights"
_STOP_AGAIN = 0.2  # fraction by which the stop deadline is extended each time it has passed
_SILENCES = 4  # number of round deadlines for which a worker may be silent if no round waits for it


@dataclass
class Membership:
    """Owns the members, their flow control and the round timer, and decides when the job continues without a worker.

    Only the master's main thread uses it. It reads the version in `job_state`. It writes there only requests to stop, their
    deadline, and the failure that caused such a request.
    """

    members: Members
    flow_control: FlowControl
    timer: RoundTimer
    link: FrameChannel
    config: Config
    job_state: JobState
    rule: Rule
    shard: ShardHandle
    pending: PendingCheckpoints
    recorder: StepRecorder
    events: Events
    judged: set[tuple[int, int]] = field(default_factory=set)  # (rank, step) of gradients above the norm bound in the open round
    # ranks that may miss weights of the open round, since a rank on the route is gone; they get the whole next version
    cut_off: set[int] = field(default_factory=set)
    _refused: dict[int, int] = field(default_factory=dict)  # by rank: consecutive gradients refused for their norm

    @property
    def live(self) -> frozenset[int]:
        """The workers whose gradients count and are awaited."""
        return self.members.live

    @property
    def wait_until(self) -> float:
        """The round's deadline or the deadline of a requested stop, whichever is earlier, by the job's clock."""
        return min(self.timer.deadline, self.job_state.stop_by)

    @property
    def followers(self) -> list[int]:
        """The ranks that get the next version: live workers and spares that flow control does not hold."""
        return sorted({*self.live, *self.members.spares} - self.flow_control.held.keys())

    def _watched(self, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if self.rule.rounds_go_on or rank in self.members.spares]

    def ask(self, ranks: Iterable[int]) -> None:
        """Ask ranks to answer once they have received everything sent so far.

        Ranks are asked if more than half of their byte limit is in flight (psnode.exchange.flow_control). This is called
        before VERSION_COMPLETE is sent, so that a rank answers before it sends its next gradient.
        """
        version = self.job_state.version
        self._put_question([rank for rank in self._watched(ranks) if self.flow_control.ask(rank, version)], version, Flag.NONE)

    def hold(self, ranks: Iterable[int]) -> None:
        """Hold the ranks that have more bytes in flight than the limit: they get no version before they have answered."""
        number = self.job_state.round.number
        self._put_question([rank for rank in self._watched(ranks) if self.flow_control.hold(rank, number)], number, Flag.HOLD)

    def _put_question(self, ranks: list[int], number: int, flags: Flag) -> None:
        if ranks:
            self.link.send(ranks, Kind.ASK, version=number, flags=flags)

    def hear_answer(self, rank: int, number: int) -> None:
        """Handle the answer of `rank`, which has received everything sent before question `number`.

        If the rank was held, the open round does not wait for its gradient.
        """
        if self.flow_control.answer(rank, number) and rank in self.live and not self.job_state.stopping:
            self.shard.excuse(rank, self.job_state.version)

    def release(self) -> dict[int, Hold]:
        """Release the held ranks that have answered, and return each with its Hold.

        If no round follows, release all held ranks.
        """
        return self.flow_control.release(everybody=self.job_state.stopping)

    def on_overdue(self, owing: frozenset[int], *, held: bool) -> None:
        """Suspend the workers that hold up the round, and extend its deadline.

        If fewer ranks than --min-workers would be left, spares included, suspend only after the hard limit, or once the
        deadline of a requested stop has passed. `owing`: workers whose traces have not come. `held`: True if the complete
        version waits for a checkpoint. Raises TransportError if no worker is to blame and twice the hard limit has passed.
        """
        live, late = self.members.live, self.timer.taken
        servers = self.shard.holders - live
        if servers and not self.job_state.stopping and late >= self.timer.patience.hard_limit:
            for rank in sorted(servers & self.shard.missing):
                self._end_without(rank, "suspended", "its part of the weights does not answer")
        hurried = self.job_state.late
        if hurried:
            self.job_state.stop_by += _STOP_AGAIN * self.config.stop_deadline
        waiting = live & self.pending.missing if held or self.job_state.stopping else frozenset()
        if not self.job_state.stopping:
            missing = self.shard.missing
            if not servers & missing:  # otherwise workers may lack a server's weights; the hard limit above applies to the server
                waiting |= live & missing
        elif not self.pending:
            waiting |= owing
        waiting -= {rank for other in waiting for rank in self.shard.behind(other)}  # these ranks may have got no weights
        if not waiting and not hurried and not self.pending.writing and late > 2 * self.timer.patience.hard_limit:
            raise TransportError(f"no round was finished within {late:.0f} s and no worker is to blame; go on with --resume")
        enough = not self.shard.needs_all and len(live - waiting) + len(self.members.spares) >= max(1, self.config.min_workers)
        if waiting and (hurried or enough or late >= self.timer.patience.hard_limit):
            for rank in sorted(waiting):
                self.suspend(rank)
        if not hurried:
            self.timer.extend()

    def suspend(self, rank: int) -> None:
        """Continue without `rank` until a frame comes from it, or permanently if workers cannot come back in this job."""
        reason = f"not heard of for {self.members.silent_for(rank):.1f} s"
        if not self.shard.readmits and not self.shard.needs_all:
            self.lose(rank, f"{reason}, and it cannot come back, as no rank keeps the updates that it misses")
            self.link.fail(rank, TransportError("this rank was put aside and lacks updates: the job goes on without it"))
            return
        hold = self.flow_control.let_go(rank)
        taken = self._do_without(rank, "suspended", reason)
        now = self.job_state.round
        step = 0 if self.rule.patient else now.last_step
        if step and hold is not None and hold.version <= now.version:  # a rank sends no gradient of a version that it did not get
            last = now.at(hold.version - 1)
            step = last.last_step
            taken = {group: last.finished if group in hold.unused else step for group in taken}
        self.members.suspend(rank, taken, step)

    def lose(self, rank: int, reason: str) -> None:
        """Continue without `rank`, which cannot return. Raises TransportError if it has a part of the weights."""
        if rank in self.shard.holders - self.members.live and not self.job_state.stopping:
            self._end_without(rank, "lost", reason)
        self.flow_control.let_go(rank)
        if rank in self.members.spares:
            self._send_past(rank)
        if self.members.forget(rank):
            self.events.tell("lost", self.job_state.version, rank, reason)
        self._do_without(rank, "lost", reason)

    def fail(self, failure: RemoteFailureError, *, ends: bool) -> None:
        """Continue without a worker that has failed.

        If `ends` is True, or if too few workers are left, stop the job with a checkpoint. Raises the failure if the rank has
        a part of the weights.
        """
        failure.show()
        if (self.shard.needs_all or failure.rank in self.shard.holders - self.members.live) and not self.job_state.stopping:
            outcome = _ENDS if self.shard.needs_all else _ENDS_WITHOUT
            self.events.tell("lost", self.job_state.version, failure.rank, failure.failure.message, outcome=outcome)
            raise failure
        unasked = self.job_state.stop_reason is None
        if ends:
            self.job_state.request(QUORUM)
        self.lose(failure.rank, failure.failure.message)
        if unasked and self.job_state.stop_reason == QUORUM:
            self.job_state.failure = failure

    def _do_without(self, rank: int, event: str, reason: str) -> dict[int, int]:
        """Remove `rank` from the live workers. The gradients that it has sent in the open round still count.

        If fewer ranks than --min-workers are left, spares included, stop with a checkpoint. Returns the result of
        `RoundsHandle.withdraw`; empty if `rank` was not live or no round follows.
        """
        if not self.members.remove(rank):
            self.pending.give_up(rank)  # it may be a server that hands over state
            return {}
        left, least = len(self.members.live), self.config.min_workers
        ends = self.shard.needs_all or not (left or self.shard.readmits)
        if ends and not self.job_state.stopping:
            self.events.tell(event, self.job_state.version, rank, reason, outcome=_ENDS)
            return self.shard.withdraw(rank)
        too_few = left + len(self.members.spares) < least
        ending = too_few or self.job_state.stop_reason is not None
        self.events.tell(event, self.job_state.version, rank, reason, outcome="" if ending else self._outlook())
        self.recorder.lost(rank)
        if too_few and self.job_state.stop_reason is None:
            reason, outcome = f"{left} of --min-workers {least} are left", "the run stops with a checkpoint"
            self.events.tell("quorum", self.job_state.version, None, reason, outcome=outcome)
            self.job_state.request(QUORUM)
        self.pending.give_up(rank)
        self._send_past(rank)  # before the round continues without this rank
        if self.job_state.stopping:
            return {}
        taken = self.shard.withdraw(rank)
        if not left and not self.shard.untouched:  # no worker is left to close the open groups
            self.shard.force()
        return taken

    def _end_without(self, rank: int, event: str, reason: str) -> None:
        """Raise TransportError, since `rank`, which has a part of the weights and computes nothing, is gone."""
        self.events.tell(event, self.job_state.version, rank, reason, outcome=_ENDS_WITHOUT)
        self.shard.withdraw(rank)

    def _send_past(self, rank: int) -> None:
        """Send the weights to the ranks that get them by way of `rank`, since `rank` may not have passed them on.

        While all groups are open, the weights y are those on which the open round's gradients are computed. Once a group is
        closed, all live workers have this version. Parts of the next version may be missing too, so it is sent whole when it
        is complete.
        """
        if ranks := sorted(self.shard.behind(rank).intersection(self.followers)):
            self.cut_off.update(ranks)
            now = self.job_state.round
            if self.job_state.stopping or self.shard.unchanged:
                self.recorder.down(self.shard.send_whole(ranks, now.version), now.last_step)
                self.recorder.links.send_whole(ranks)
            names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
            self.events.tell("bypassed", now.version, rank, f"rank 0 sends the weights to {names} itself")

    def _outlook(self) -> str:
        """Return a text about how the run continues after the loss of a worker."""
        if self.members.spares:
            return "a spare takes its place"
        return f"the run goes on with {len(self.members.live)} of {counted(self.members.places, 'worker')}"

    def suspend_silent(self) -> None:
        """Suspend workers that have been silent for too long, if the rule closes rounds without the slowest workers.

        Under such a rule no round deadline detects silent workers.
        """
        if not self.rule.rounds_go_on or self.config.local is not None:
            return
        limit = max(_SILENCES * self.timer.patience.of_round(pause=False), self.timer.patience.hard_limit)
        for rank in sorted(self.members.live & self.shard.missing):
            enough = len(self.members.live) > max(1, self.config.min_workers)
            if self.members.silent_for(rank) > (limit if enough else _SILENCES * limit):
                self.suspend(rank)

    def reject(self, rank: int, what: WireError | Refused) -> None:
        """Count an unusable frame of `rank`, and continue without `rank` after three such frames in a row.

        The kind of an unreadable frame is unknown. Therefore the open round no longer waits for the sender. If a checkpoint
        waits for the sender's part, the sender is dropped and the checkpoint is written without that part.
        """
        if rank not in self.members.live:
            return
        error = what.error if isinstance(what, Refused) else what
        self.recorder.dropped(self.job_state.round.last_step)
        struck_out = self.members.strike(rank)
        self.events.tell("rejected", self.job_state.version, rank, f"{type(error).__name__}: {error}")
        self.recorder.excuse(rank, self.job_state.round.last_step)
        if isinstance(what, WireError) and rank in self.pending.missing:
            self.link.fail(rank, error)
            self.lose(rank, "its part of a checkpoint could not be used")
        elif struck_out:
            self.link.fail(rank, WireError(f"{STRIKES} frames of rank {rank} in a row could not be used", 0))
            self.lose(rank, f"{STRIKES} of its frames in a row could not be used")
        elif isinstance(what, WireError) and not self.job_state.stopping:
            self.shard.excuse(rank, self.job_state.version)

    def judge(self, what: Refused | Scaled, error: NormError) -> None:
        """Report a gradient above the norm bound, once per gradient. Drop its sender after three refused gradients in a row."""
        rank, key = what.sender, (what.sender, error.step)
        if rank not in self.members.live or key in self.judged:
            return
        self.judged.add(key)
        if isinstance(what, Scaled):
            self.events.tell("scaled", self.job_state.version, rank, str(error))
            return
        self.recorder.dropped(self.job_state.round.last_step)
        self._refused[rank] = self._refused.get(rank, 0) + 1
        self.events.tell("rejected", self.job_state.version, rank, f"{type(error).__name__}: {error}")
        self.recorder.excuse(rank, self.job_state.round.last_step)
        if self._refused[rank] >= STRIKES:
            self.link.fail(rank, WireError(f"{STRIKES} gradients of rank {rank} in a row were out of all proportion", 0))
            self.lose(rank, f"{STRIKES} of its gradients in a row were out of all proportion")

    @property
    def forfeited(self) -> set[int]:
        """The ranks whose gradients of the open round were above the norm bound, and do not return to the senders' residuals.

        Empty unless --norm-cap is auto.
        """
        return {rank for rank, _ in self.judged} if self.config.norm_cap == AUTO else set()

    def settle(self, contributors: Iterable[tuple[int, int]]) -> None:
        """Reset the counts of refused gradients after a version is complete.

        The count of a rank is reset if the rank contributed to this version and its gradient was within the norm bound.
        """
        judged = {rank for rank, _ in self.judged}
        for rank in {rank for rank, _ in contributors} - judged:
            self._refused.pop(rank, None)
        self.judged.clear()
