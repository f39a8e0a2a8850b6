"""Membership: workers waited for, suspended or lost, and the consequences for the open round and the job."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from psnode.config import Config
from psnode.config.effects import AUTO
from psnode.errors import NormError, TransportError, WireError
from psnode.exchange.flow_control import FlowControl
from psnode.exchange.shard.consistency import Rule
from psnode.exchange.shard.handle import RoundsHandle
from psnode.exchange.shard.shard_events import Refused, Scaled
from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.deadlines import RoundTimer
from psnode.master.events import Events
from psnode.master.job_state import QUORUM, JobState
from psnode.master.recorder import StepRecorder
from psnode.protocol.channel import FrameChannel, RemoteFailureError
from psnode.transport.clock import Clock

STRIKES = 3  # frames in a row that cannot be used
_STOP_AGAIN = 0.2  # of the stop deadline, for each thing that is left to do after it
_SILENCES = 4  # deadlines that a worker may keep silent where no round waits for it


@dataclass
class _Absence:
    """`taken[g]`: the last step whose gradient of group g was taken; `step`: the last that the worker may have sent."""

    taken: Mapping[int, int]
    step: int
    heard: bool = False


class Members:
    """The workers of a job. `live`: those whose gradients count and who are waited for; `spares`: those who wait to be."""

    def __init__(self, workers: Iterable[int], clock: Clock, spares: Iterable[int] = ()) -> None:
        self.live = frozenset(workers)
        self.spares = list(spares)
        self._most = len(self.live)
        self._clock = clock
        self._since = dict.fromkeys([*self.live, *self.spares], clock.now())
        self._strikes: dict[int, int] = {}
        self._aside: dict[int, _Absence] = {}

    def hear(self, rank: int, gradient_of: int = 0) -> None:
        """Something came from `rank`: part of the gradient of a step, if that is given."""
        self._since[rank] = self._clock.now()
        if (absence := self._aside.get(rank)) is not None:
            absence.heard = True
            absence.step = max(absence.step, gradient_of)

    def ask(self, ranks: Iterable[int]) -> None:
        """`ranks` had nothing to say, and have from now on: they kept silent because they were not asked."""
        self._since.update(dict.fromkeys(ranks, self._clock.now()))

    def silent_for(self, rank: int) -> float:
        """Seconds since `rank` was heard or asked."""
        return self._clock.now() - self._since[rank]

    def strike(self, rank: int) -> bool:
        """`rank` sent a frame that cannot be used; True if it did so STRIKES times in a row."""
        self._strikes[rank] = self._strikes.get(rank, 0) + 1
        return self._strikes[rank] >= STRIKES

    def forgive(self, rank: int) -> None:
        """Note that a gradient of `rank` was used."""
        self._strikes.pop(rank, None)

    def remove(self, rank: int) -> bool:
        """Count `rank` no more; False if it was not counted."""
        if rank not in self.live:
            return False
        self.live -= {rank}
        return True

    def suspend(self, rank: int, taken: Mapping[int, int], step: int) -> None:
        """Note that `rank` may return, its steps taken so far by group, and that it may have sent the gradient of `step`."""
        self._aside[rank] = _Absence(taken, step)

    def is_suspended(self, rank: int) -> bool:
        """True if `rank` may return."""
        return rank in self._aside

    def forget(self, rank: int) -> bool:
        """`rank` will not return, and is no spare; False if it was neither suspended nor a spare."""
        if rank in self.spares:
            self.spares.remove(rank)
            return True
        return self._aside.pop(rank, None) is not None

    def readmit(self) -> dict[int, tuple[int, list[int]]]:
        """Those who were suspended and heard since: each with its last step, and the groups not taken of that.

        They count again, but for those whose places have been taken: these are spares.
        """
        found = {}
        for rank in sorted(rank for rank, absence in self._aside.items() if absence.heard):
            absence = self._aside.pop(rank)
            found[rank] = absence.step, [group for group, last in absence.taken.items() if last < absence.step]
        back = list(found)[: max(0, self._most - len(self.live))]
        self.live |= set(back)
        self.spares += [rank for rank in found if rank not in back]
        return found

    def promote(self, behind: Collection[int] = ()) -> list[int]:
        """Count as many spares as places are empty: these. None of those who are `behind`."""
        promoted = [rank for rank in self.spares if rank not in behind][: self._most - len(self.live)]
        self.spares = [rank for rank in self.spares if rank not in promoted]
        self.live |= set(promoted)
        return promoted


@dataclass
class Membership:
    """Decides when the others go on without a worker. For the master's main thread."""

    link: FrameChannel
    config: Config
    job_state: JobState
    members: Members
    round: RoundTimer
    rule: Rule
    shard: RoundsHandle
    pending: PendingCheckpoints
    recorder: StepRecorder
    events: Events
    flow_control: FlowControl
    judged: set[tuple[int, int]] = field(default_factory=set)  # ranks and steps of gradients out of bounds, in the open round
    _refused: dict[int, int] = field(default_factory=dict)  # by rank: the number of such gradients in a row

    def on_overdue(self, owing: frozenset[int], *, held: bool) -> None:
        """Suspend the workers that hold up the round; if too few would be left, after the longest deadline.

        At once if a stop was asked for. `owing`: workers whose traces have not come. `held`: a checkpoint holds it up.
        """
        live, late = self.members.live, self.round.taken
        hurried = self.job_state.late
        if hurried:
            self.job_state.stop_by += _STOP_AGAIN * self.config.stop_deadline
        waiting = live & self.pending.missing if held or self.job_state.stopping else frozenset()
        if not self.job_state.stopping:
            waiting |= live & self.shard.missing
        elif not self.pending:
            waiting |= owing
        if not waiting and not hurried and not self.pending.writing and late > 2 * self.round.patience.hard_limit:
            raise TransportError(f"no round was finished within {late:.0f} s and no worker is to blame; go on with --resume")
        enough = len(live - waiting) + len(self.members.spares) >= max(1, self.config.min_workers)
        if waiting and (hurried or enough or late >= self.round.patience.hard_limit):
            for rank in sorted(waiting):
                self.suspend(rank)
        if not hurried:
            self.round.extend()

    def suspend(self, rank: int) -> None:
        """Go on without `rank` until it is heard again."""
        reason = f"not heard of for {self.members.silent_for(rank):.1f} s"
        hold = self.flow_control.let_go(rank)
        taken = self._do_without(rank, "suspended", reason)
        step = 0 if self.rule.patient else self.job_state.version + 1
        if step and hold is not None and hold.version < step:  # it can have sent no gradient of a version that it was not sent
            step = hold.version
            taken = {group: step - 1 if group in hold.unused else step for group in taken}
        self.members.suspend(rank, taken, step)

    def lose(self, rank: int, reason: str) -> None:
        """Go on without `rank` for good."""
        self.flow_control.let_go(rank)
        if self.members.forget(rank):
            self.events.tell("lost", self.job_state.version, rank, reason)
        self._do_without(rank, "lost", reason)

    def fail(self, failure: RemoteFailureError, *, ends: bool) -> None:
        """Go on without a worker that has failed; if that `ends` the job, or too few are left, stop with a checkpoint."""
        failure.show()
        unasked = self.job_state.stop_reason is None
        if ends:
            self.job_state.request(QUORUM)
        self.lose(failure.rank, failure.failure.message)
        if unasked and self.job_state.stop_reason == QUORUM:
            self.job_state.failure = failure

    def _do_without(self, rank: int, event: str, reason: str) -> dict[int, int]:
        """Go on without `rank`; its gradients in the open round count. Below the quorum, stop with a checkpoint. Returns the
        result of `RoundsHandle.withdraw`.
        """
        if not self.members.remove(rank):
            return {}
        self.events.tell(event, self.job_state.version, rank, reason)
        self.recorder.lost(rank)
        left, least = len(self.members.live), self.config.min_workers
        if left + len(self.members.spares) < least and self.job_state.stop_reason is None:
            self.events.tell("quorum", self.job_state.version, None, f"{left} of --min-workers {least} are left")
            self.job_state.request(QUORUM)
        self.pending.give_up(rank)
        if self.job_state.stopping:
            return {}
        taken = self.shard.withdraw(rank)
        if not left and not self.shard.untouched:  # no worker will close the open groups: the version is complete as it is
            self.shard.force()
        return taken

    def suspend_silent(self) -> None:
        """Suspend silent workers where rounds close without the slowest, so that no deadline notices them."""
        if not self.rule.rounds_go_on or self.config.local is not None:
            return
        limit = max(_SILENCES * self.round.patience.of_round(pause=False), self.round.patience.hard_limit)
        for rank in sorted(self.members.live & self.shard.missing):
            enough = len(self.members.live) > max(1, self.config.min_workers)
            if self.members.silent_for(rank) > (limit if enough else _SILENCES * limit):
                self.suspend(rank)

    def reject(self, rank: int, what: WireError | Refused) -> None:
        """Count frames of `rank` that cannot be used; after three in a row go on without it.

        The kind of an unreadable frame is unknown: this round expects nothing more of its sender, and a checkpoint that
        waits for it is made without.
        """
        if rank not in self.members.live:
            return
        error = what.error if isinstance(what, Refused) else what
        self.recorder.dropped(self.job_state.version + 1)
        struck_out = self.members.strike(rank)
        self.events.tell("rejected", self.job_state.version, rank, f"{type(error).__name__}: {error}")
        self.recorder.excuse(rank, self.job_state.version + 1)
        if isinstance(what, WireError) and rank in self.pending.missing:
            self.link.fail(rank, error)
            self.lose(rank, "its part of a checkpoint could not be used")
        elif struck_out:
            self.link.fail(rank, WireError(f"{STRIKES} frames of rank {rank} in a row could not be used", 0))
            self.lose(rank, f"{STRIKES} of its frames in a row could not be used")
        elif isinstance(what, WireError) and not self.job_state.stopping:
            self.shard.excuse(rank, self.job_state.version + 1)

    def judge(self, what: Refused | Scaled, error: NormError) -> None:
        """Tell of a gradient that is out of bounds, once; after three refused ones in a row go on without its sender."""
        rank, key = what.sender, (what.sender, error.step)
        if rank not in self.members.live or key in self.judged:
            return
        self.judged.add(key)
        if isinstance(what, Scaled):
            self.events.tell("scaled", self.job_state.version, rank, str(error))
            return
        self.recorder.dropped(self.job_state.version + 1)
        self._refused[rank] = self._refused.get(rank, 0) + 1
        self.events.tell("rejected", self.job_state.version, rank, f"{type(error).__name__}: {error}")
        self.recorder.excuse(rank, self.job_state.version + 1)
        if self._refused[rank] >= STRIKES:
            self.link.fail(rank, WireError(f"{STRIKES} gradients of rank {rank} in a row were out of all proportion", 0))
            self.lose(rank, f"{STRIKES} of its gradients in a row were out of all proportion")

    @property
    def forfeited(self) -> set[int]:
        """The ranks whose frames cannot be gradients: these do not return to their memories."""
        return {rank for rank, _ in self.judged} if self.config.norm_cap == AUTO else set()

    def settle(self, contributors: Iterable[tuple[int, int]]) -> None:
        """A version is complete: who contributed a whole gradient to it has none out of bounds in a row."""
        judged = {rank for rank, _ in self.judged}
        for rank in {rank for rank, _ in contributors} - judged:
            self._refused.pop(rank, None)
        self.judged.clear()
