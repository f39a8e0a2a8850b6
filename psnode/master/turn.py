"""What goes down where a version ends: who takes part from the next round on, whose the examples are, and what was not used."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from psnode.link import Link
from psnode.master.accounts import Accounts
from psnode.master.dealing import Dealing
from psnode.master.downlink import Downlink
from psnode.master.drafts import Drafts
from psnode.master.events import Events
from psnode.master.members import Members
from psnode.master.rounds import Rounds
from psnode.master.standing import Standing
from psnode.plan import Plan
from psnode.run_directory import RunDirectory
from psnode.wire import HEADER_BYTES, Flag, Kind, pack_groups


@dataclass
class Turn:
    """The turn from one round to the next. For the master's main thread, while no group is being sent.

    `entering`: who takes part or waits from here on and did not before, each with a step, and what was not used of that.
    """

    link: Link
    plan: Plan
    run: RunDirectory
    standing: Standing
    members: Members
    rounds: Rounds
    downlink: Downlink
    drafts: Drafts
    accounts: Accounts
    dealing: Dealing
    events: Events
    entering: dict[int, tuple[int, list[int]]] = field(default_factory=dict)
    _dealt: bool = False  # since the start
    _recorded: bool = True  # the deal, in config.json

    def let_in(self) -> None:
        """Who was put aside and heard again gets the whole weights of the version that is complete, and takes part or waits.

        Empty places are taken by spares, which have followed all versions.
        """
        self.entering = self.members.let_in()
        for rank in self.entering:
            waits = rank in self.members.spares
            self.events.tell("returned", self.standing.version, rank, "its place is taken: a spare from here on" if waits else "")
            for group in self.plan.groups:
                self.accounts.down(self.downlink.send_dense(group, self.standing.version, [rank]), self.standing.version)
        for rank in self.members.promote():
            former = self.dealing.hand_over(rank, self.members.live - {rank})
            self.events.tell("promoted", self.standing.version, rank, f"in the place of rank {former}")
            self._dealt = True
            self.entering[rank] = self.standing.version, []
            if statistics := self.drafts.statistics:
                self.link.send(rank, Kind.STATE, statistics, step=self.standing.version, version=self.standing.version)
                self.accounts.down(HEADER_BYTES + len(statistics), self.standing.version)
        for rank in self.entering.keys() & self.members.live:
            self.accounts.found(rank)
            self.rounds.admit([rank], self.standing.version)
        self.downlink.recipients = tuple(sorted([*self.members.live, *self.members.spares]))

    def deal(self) -> bool:
        """Where an epoch ends that was dealt among others than take part now, the next is dealt among these.

        Who enters has to know of an earlier deal. Whether there was a new one.
        """
        informed = self.entering.keys() & self.members.live if self._dealt else set()
        if renewed := self.dealing.renew(self.standing.version, self.members.live):
            self._dealt, informed = True, set(self.members.live)
            names = ", ".join(map(str, self.dealing.ranks))
            self.events.tell(
                "re-dealt", self.standing.version, None, f"the examples of the epoch that begins are those of ranks {names}"
            )
            self._recorded = False
            self.accounts.count_epochs(self.dealing.epochs.steps, self.dealing.epochs.shift)
        if not self._recorded:  # where the disk is full, again with the next version: until then it takes no checkpoint either
            with contextlib.suppress(OSError):
                self.run.record(self.dealing.parts)
                self._recorded = True
        if informed:
            body = self.dealing.deal.to_bytes()
            self.link.send(sorted(informed), Kind.DEAL, body, step=self.standing.version, version=self.standing.version)
            self.accounts.down((HEADER_BYTES + len(body)) * len(informed), self.standing.version)
        return renewed

    def close(self, flags: Flag, left_out: Mapping[int, list[int]]) -> None:
        """Declare the version complete, to each worker with the groups of its gradient that were not used and never will be."""
        frames: dict[tuple[int, bytes, Flag], list[int]] = {}
        for rank in sorted([*self.members.live, *self.members.spares]):
            spare = rank in self.members.spares
            step, unused = self.entering.get(rank, (self.standing.version, left_out.get(rank, [])))
            told = flags & ~Flag.CHECKPOINT if spare or rank in self.entering else flags  # it was not there when that began
            told |= Flag.SPARE if spare else Flag.NONE
            frames.setdefault((step, pack_groups(unused, len(self.plan.groups)), told), []).append(rank)
        self.entering.clear()
        for (step, body, told), ranks in frames.items():
            self.link.send(ranks, Kind.ROUND, body, step=step, version=self.standing.version, flags=told)
            self.accounts.down((HEADER_BYTES + len(body)) * len(ranks), self.standing.version)
