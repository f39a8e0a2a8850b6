"""The membership of a real job, with stand-ins for the parts of a master that a simulation lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from psnode.config import Config
from psnode.exchange.flow_control import FlowControl
from psnode.exchange.shard.consistency import Rule
from psnode.exchange.shard.rounds import Origin, Rounds
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.message_paths import MessagePaths
from psnode.jobs.simulating.simulated_worker import SimulatedWorker
from psnode.master.deadlines import RoundTimer, patience_of
from psnode.master.job_state import JobState
from psnode.master.member_list import Members
from psnode.master.membership import Membership
from psnode.protocol.wire import Flag, Kind
from psnode.transport.clock import Clock


class _NoCheckpoints:
    """PendingCheckpoints of a job that writes none."""

    missing: frozenset[int] = frozenset()
    writing = False

    def __bool__(self) -> bool:
        return False

    def give_up(self, rank: int) -> None:
        """Do nothing."""


class _NoRecorder:
    """StepRecorder that takes the news of lost workers; records are made of SimulatedVersion."""

    def lost(self, rank: int) -> None:
        """Do nothing."""


@dataclass
class ToldEvents:
    """Events of a simulated job, as in events.jsonl, with virtual times."""

    loop: EventLoop
    told: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, event: str, step: int, rank: int | None = None, reason: str = "", *, outcome: str = "") -> None:
        """Note an event. `outcome` is not recorded."""
        self.told.append({"time": self.loop.now, "step": step, "event": event, "rank": rank, "reason": reason})


@dataclass
class _Questions:
    """The master's channel, on which membership sends its questions to workers."""

    paths: MessagePaths
    workers: Mapping[int, SimulatedWorker]

    def send(self, ranks: Iterable[int], kind: Kind, *, version: int, flags: Flag) -> None:
        """Send question `version` to the workers `ranks`."""
        assert kind is Kind.ASK
        for rank in ranks:
            self.paths.tell(rank, self.workers[rank].hear_question, version, Flag.HOLD in flags)


class SimulatedRounds(Rounds[Origin]):
    """Rounds of a job whose weights all come straight from the master, with what its membership asks of a shard's handle."""

    needs_all = False  # no round needs a worker that is withdrawn
    readmits, is_remote = True, False
    holders: frozenset[int] = frozenset()  # no other rank has weights

    def behind(self, rank: int) -> frozenset[int]:
        """Return the ranks to which weights come by way of `rank`: none."""
        return frozenset()


def membership_of(
    loop: EventLoop,
    paths: MessagePaths,
    workers: Mapping[int, SimulatedWorker],
    rounds: SimulatedRounds,
    rule: Rule,
    config: Config,
    *,
    ranks: Iterable[int],
    weights: int,
) -> tuple[Membership, ToldEvents]:
    """Return the membership of the workers `ranks` under a clock that shows virtual time, and its events.

    `workers`: by rank, filled before the first round opens. `weights`: bytes of a whole set of weights.
    """
    clock, events = Clock(lambda: loop.now), ToldEvents(loop)
    found = Membership(
        Members(ranks, clock), FlowControl(weights), RoundTimer(patience_of(config, rule), clock),
        cast(Any, _Questions(paths, workers)), config, JobState(clock, config.stop_deadline), rule, cast(Any, rounds),
        cast(Any, _NoCheckpoints()), cast(Any, _NoRecorder()), cast(Any, events),
    )  # fmt: skip
    return found, events
