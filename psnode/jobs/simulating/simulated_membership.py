"""The membership of a real job in a simulation, with substitutes for parts of a master that a simulation does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from psnode.config import Config
from psnode.exchange.flow_control import FlowControl
from psnode.exchange.shard.consistency import Rule
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.message_paths import MessagePaths
from psnode.jobs.simulating.simulated_handle import SimulatedHandle
from psnode.jobs.simulating.simulated_worker import SimulatedWorker
from psnode.master.deadlines import RoundTimer, patience_of
from psnode.master.job_state import JobState
from psnode.master.member_list import Members
from psnode.master.membership import Membership
from psnode.protocol.wire import Flag, Kind
from psnode.transport.clock import Clock


class _NoCheckpoints:
    """A substitute for PendingCheckpoints in a job that writes no checkpoints."""

    missing: frozenset[int] = frozenset()
    writing = False

    def __bool__(self) -> bool:
        return False

    def give_up(self, rank: int) -> None:
        """Do nothing, because no checkpoint is being written."""


class _NoLinks:
    """The link counts of a job whose paths count bytes themselves."""

    def send_whole(self, ranks: Iterable[int]) -> None:
        """Do nothing."""


class _NoRecorder:
    """A StepRecorder that ignores lost workers and bytes, since records are made from SimulatedVersion."""

    links = _NoLinks()

    def lost(self, rank: int) -> None:
        """Do nothing, because this recorder records nothing."""

    def down(self, nbytes: int, step: int) -> None:
        """Do nothing."""


@dataclass
class ToldEvents:
    """The events of a simulated job. They have the fields of events.jsonl, with virtual times."""

    loop: EventLoop
    told: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, event: str, step: int, rank: int | None = None, reason: str = "", *, outcome: str = "") -> None:
        """Store an event. `outcome` is accepted, as by the recorder of a real job, but not stored."""
        self.told.append({"time": self.loop.now, "step": step, "event": event, "rank": rank, "reason": reason})


@dataclass
class _Questions:
    """The master's channel, through which membership sends questions to workers, and ends workers that cannot come back."""

    paths: MessagePaths
    workers: Mapping[int, SimulatedWorker]

    def send(self, ranks: Iterable[int], kind: Kind, *, version: int, flags: Flag) -> None:
        """Send the question with the number `version` to the workers `ranks`."""
        assert kind is Kind.ASK
        for rank in ranks:
            self.paths.tell(rank, self.workers[rank].hear_question, version, Flag.HOLD in flags)

    def fail(self, rank: int, error: Exception) -> None:
        """End the worker `rank`. The message takes no time, since nothing of this worker counts any more."""
        self.workers[rank].die()
        self.paths.cut(rank)


def membership_of(
    loop: EventLoop,
    paths: MessagePaths,
    workers: Mapping[int, SimulatedWorker],
    handle: SimulatedHandle,
    rule: Rule,
    config: Config,
    *,
    ranks: Iterable[int],
    weights: int,
) -> tuple[Membership, ToldEvents]:
    """Return the membership of a simulated job with the workers `ranks`, whose clock shows virtual time, and its list of events.

    `workers`: the workers by rank; the caller fills it before the first round opens. `weights`: bytes of the weights of all
    groups.
    """
    clock, events = Clock(lambda: loop.now), ToldEvents(loop)
    found = Membership(
        Members(ranks, clock), FlowControl(weights), RoundTimer(patience_of(config, rule), clock),
        cast(Any, _Questions(paths, workers)), config, JobState(clock, config.stop_deadline), rule, cast(Any, handle),
        cast(Any, _NoCheckpoints()), cast(Any, _NoRecorder()), cast(Any, events),
    )  # fmt: skip
    return found, events
