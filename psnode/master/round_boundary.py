"""Messages between two rounds: the shares of the examples, and the use that was made of each worker's last gradient."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from psnode.exchange.shard.consistency import Rule
from psnode.exchange.shard.handle import ShardHandle
from psnode.exchange.shard.median_clipping import Clipped
from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.events import Events
from psnode.master.example_dealing import ExampleDealing
from psnode.master.job_state import JobState
from psnode.master.membership import Membership
from psnode.master.readmission import LastGradient, Readmission
from psnode.master.recorder import StepRecorder
from psnode.plans.groups import Plan
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Flag, Kind, pack_factors, pack_groups, pack_norm
from psnode.records import retention
from psnode.records.directory import RunDirectory
from psnode.records.history import AddedGradient


@dataclass
class RoundBoundary:
    """Decides, between two rounds, which messages each worker gets with a version.

    Methods other than `clip` are called only while no group is being sent. A worker is told which groups of its last gradient
    will never be used. Its last gradient is that of the last round (see `left_out`), or an earlier one if the worker comes back
    with this version.
    """

    link: FrameChannel
    run: RunDirectory
    job_state: JobState
    membership: Membership
    plan: Plan
    rule: Rule
    shard: ShardHandle
    pending: PendingCheckpoints
    recorder: StepRecorder
    dealing: ExampleDealing
    events: Events
    readmission: Readmission
    _clipped: dict[int, tuple[int, dict[int, float]]] = field(default_factory=dict)  # by rank: a step, and factors by group
    _recorded: bool = True  # config.json holds the present shares

    def count(self, contributors: Iterable[tuple[int, int]]) -> bool:
        """Count the gradients in the complete version. Return True if this count may have moved the last step of the run.

        `contributors`: pairs of a rank and that rank's step.
        """
        self.dealing.count(self.job_state.round.finished, contributors)
        if self.dealing.applied is None:
            return False
        self.recorder.count_epochs(self.dealing.epochs.steps, self.dealing.epochs.epoch_offset)
        return True

    def begin_checkpoint(self, until: float) -> bool:
        """Begin a checkpoint of the complete version. Return False if this is not possible. `until`: see BegunCheckpoint."""
        return self.pending.begin(self.job_state.version, self.membership.live, until, self._facts)

    def keep(self) -> None:
        """Keep the complete version, so that it can be saved if the job ends during the next round."""
        self.pending.last_whole.keep(self.job_state.version, self._facts)

    @property
    def _facts(self) -> Mapping[str, object]:
        applied = {} if self.dealing.applied is None else self.dealing.applied.facts()
        return {**retention.UNKNOWN, **self.shard.facts(), **applied}

    def clip(self, group: int, clipped: Iterable[Clipped]) -> None:
        """Note that gradients of `group` were used only in part. `close` sends the factors to the senders."""
        for rank, step, factor in clipped:
            if self._clipped.get(rank, (0, {}))[0] != step:
                self._clipped[rank] = step, {}
            self._clipped[rank][1][group] = factor

    def pass_on(self) -> bool:
        """Pass the open round, which has no worker and no gradient, to spares. Return True if the examples were resharded.

        VERSION_COMPLETE of the present version is sent again.
        """
        self.readmission.catch_up()
        self.readmission.promote()
        renewed = self.deal()
        self.close(Flag.NONE, {})
        return renewed

    def break_off(self, until: float) -> None:
        """End the job with the present version, although a round is open, since this round has no gradient.

        `until`: see BegunCheckpoint.
        """
        self.job_state.stopping = True
        if self.pending.begun != self.job_state.version:
            self.begin_checkpoint(until)
        self.readmission.catch_up()
        self.close(Flag.STOP, {})
        self.pending.publish()

    def deal(self) -> bool:
        """Reshard the examples if an epoch has ended and membership has changed. Return True if they were resharded.

        New shares are sent to all live workers that are not held. If nothing was resharded, the present shares are sent to
        the ranks that enter or are released, provided that the shares have changed since the start of the job.
        """
        informed = self.readmission.ranks & self.membership.live if self.readmission.dealt else set()
        if renewed := self.dealing.renew(self.job_state.round.finished, self.membership.live):
            self.readmission.dealt, informed = True, set(self.membership.live - self.membership.flow_control.held.keys())
            names = ", ".join(map(str, self.dealing.ranks))
            self.events.tell("resharded", self.job_state.version, None, f"in the epoch that begins, ranks {names} share them")
            self._recorded = False
            self.recorder.count_epochs(self.dealing.epochs.steps, self.dealing.epochs.epoch_offset)
        if not self._recorded:  # if the disk is full, try again with the next version: no checkpoint can be written until then
            with contextlib.suppress(OSError):
                self.run.record(self.dealing.parts)
                self._recorded = True
        if informed:
            now, body = self.job_state.round, self.dealing.deal.to_bytes()
            self.link.send(sorted(informed), Kind.RESHARD, body, step=now.finished, version=now.version)
        return renewed

    def left_out(self, added: Sequence[Iterable[AddedGradient]], forfeited: Container[int] = ()) -> dict[int, list[int]]:
        """Return for each live worker the groups to which its gradient was not added. `added`: by group, the added gradients.

        The list is empty for ranks in `forfeited`. It is empty for all ranks if the rule keeps late gradients for the next
        round.
        """
        ranks = [{each.rank for each in found} for found in added]
        keeps = self.rule.patient
        return {
            rank: [] if keeps or rank in forfeited else [group for group, there in enumerate(ranks) if rank not in there]
            for rank in self.membership.live
        }

    def tell_norm(self, norm: float) -> None:
        """Send the norm of the mean gradient in the complete version to all followers, before `close`."""
        now = self.job_state.round
        if ranks := self.membership.followers:
            self.link.send(ranks, Kind.NORM, pack_norm(norm), step=now.finished, version=now.version)

    def close(self, flags: Flag, left_out: Mapping[int, list[int]]) -> None:
        """Send VERSION_COMPLETE to all followers, each with the groups of its last gradient that will never be used."""
        now = self.job_state.round
        version = now.version
        frames: dict[tuple[int, bytes, Flag], list[int]] = {}
        for rank, held in self.membership.flow_control.held.items():
            if held.version == version:
                held.unused = left_out.get(rank, [])
        ranks = self.membership.followers
        self.membership.ask(ranks)
        if ranks and self.dealing.applied is not None:
            self.link.send(ranks, Kind.EPOCH, step=self.dealing.applied.gradients, version=version)
        for rank in ranks:
            spare = rank in self.membership.members.spares
            step, unused = self.readmission.earlier.get(rank) or LastGradient(now.finished, left_out.get(rank, []))
            absent = spare or rank in self.readmission.entering  # True if the rank was absent when the checkpoint began
            told = flags & ~Flag.CHECKPOINT if absent else flags
            told |= Flag.SPARE if spare else Flag.NONE
            frames.setdefault((step, pack_groups(unused, len(self.plan.groups)), told), []).append(rank)
        self._tell_factors(ranks)
        self.readmission.clear()
        for (step, body, told), readers in frames.items():
            self.link.send(readers, Kind.VERSION_COMPLETE, body, step=step, version=version, flags=told)
        if not self.job_state.stopping:
            self.membership.hold(ranks)
            self.shard.send_to(followers := self.membership.followers)
            self.recorder.links.send_to(followers)

    def _tell_factors(self, ranks: Iterable[int]) -> None:
        """If the gradient of a rank in `ranks` was clipped, send this rank the factor of each group.

        A worker ignores factors for an earlier step.
        """
        for rank in [rank for rank in ranks if rank in self._clipped]:
            step, factors = self._clipped.pop(rank)
            body = pack_factors(factors, len(self.plan.groups))
            self.link.send(rank, Kind.CLIP, body, step=step, version=self.job_state.version)
