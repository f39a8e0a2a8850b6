"""The master's handle of the shards on other ranks, and of its own shard if it has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch

from psnode.codecs.arrays import Floats
from psnode.errors import TransportError, WireError
from psnode.exchange.routes.route import Route, need_all
from psnode.exchange.shard.remote.coming_state import ComingState
from psnode.exchange.shard.remote.copied_groups import CopiedGroups
from psnode.exchange.shard.remote.event_check import fits
from psnode.exchange.shard.remote.fetched_state import FetchedState
from psnode.exchange.shard.remote.gathered_state import starting_state
from psnode.exchange.shard.remote.own_shard import OwnShard
from psnode.exchange.shard.remote.pieces_of_state import PiecesOfState
from psnode.exchange.shard.remote.shard_calls import ANSWER_SECONDS, ShardCalls, broken, cannot_go_on
from psnode.exchange.shard.remote.shard_messages import (
    ShardEvent,
    pack_files,
    unpack_event,
)
from psnode.exchange.shard.remote.shared_norm import FoundNorm, NormOfShards
from psnode.exchange.shard.remote.withdrawal import withdraw_from_all
from psnode.exchange.shard.shard import Shard
from psnode.exchange.shard.shard_events import GroupClosed, Squares, StatePart, Took
from psnode.exchange.shard.state import ShardState
from psnode.exchange.update.served_model import ServedModel
from psnode.plans.groups import Plan
from psnode.plans.part import PlanPart, part_of
from psnode.plans.roles import MASTER
from psnode.protocol.channel import SHARD_TAG, FrameChannel
from psnode.protocol.round import Round
from psnode.protocol.wire import Frame, Kind
from psnode.records import checkpoint
from psnode.records.checkpoint import Checkpoint

Tensors = dict[str, torch.Tensor]
# an answer with a state may take longer by the time of 5 times the weights at 1 MB/s
_STATE_MODELS, _LEAST_RATE = 5, 1e6


class DistributedShard:
    """Handle of the shards on all ranks in `routes`. `own`: the master's shard, if the master is a root in `routes`.

    Several shards may have the same groups. Such a group is closed when all its shards have closed it, with the same
    gradients. For other events of the group, and for its state, only the shard with the lowest rank counts.

    Every shard carries out orders one after another. Calls that need a result, such as `state` and `missing`, wait for the
    answers. The weights x are fetched only when they are needed: for checkpoints, and at the end. `weights`: the master's
    model, which then has the newest x. `rate`: returns the learning rate of a round. `patience`: the longest wait for an
    answer, in seconds. `estimates`: True if gradients are clipped by the norm of the previous version. Events of `own` are in
    the inbox. The master passes Squares events to `note_squares`, and handles all other events itself.

    If shards have different groups, the loss of a rank that has a shard ends the run: `withdraw` raises TransportError. If
    these shards are on workers, the loss of any worker ends the run, and `force` raises, too. If all shards have the same
    groups, `withdraw` makes them agree on the gradients of the lost rank in the open round. The lost rank cannot come back,
    since it would need weights and memories of all versions that it has missed.
    """

    on_host: Sequence[str] = ()
    is_remote = True
    runs_own_code = False  # no such code on this rank, where values would have to be copied before the code runs

    def __init__(
        self, link: FrameChannel, plan: Plan, routes: Sequence[Route], weights: ServedModel,
        rate: Callable[[Round], float], patience: float, *, estimates: bool = False,
        own: Shard | None = None,
    ) -> None:  # fmt: skip
        self._link, self._plan, self._weights, self._rate, self._patience = link, plan, weights, rate, patience
        roots = sorted({root for route in routes for root in route.roots})
        self._parts: dict[int, PlanPart] = {
            root: part_of(plan, [group for group, route in enumerate(routes) if root in route.roots]) for root in roots
        }
        self._copied = CopiedGroups(routes)
        self._found: Checkpoint | None = None
        self._own = None if own is None else OwnShard(own)
        self.leads_own_sgd = own is not None and own.leads_own_sgd
        self._remote = {rank: part for rank, part in self._parts.items() if rank != MASTER}
        self.needs_all = need_all(routes)
        self.readmits = not self._copied.exist and not self.needs_all
        self._calls = ShardCalls(link, self._remote, needs_all=not self._copied.exist)
        self._withdrawn: set[int] = set()
        self._round = Round.after(0)  # the open round, or the last round
        self._unfinished: dict[int, set[int]] = {}  # the open groups of this round, by the rank of their shard
        self._ranks: frozenset[int] = frozenset()
        self._recipients: list[int] | None = None
        self._seconds: dict[str, float] = {}
        self._norm = NormOfShards(self._parts, estimates=estimates)
        self._tell: Callable[[int], None] = lambda group: None
        self._pieces: PiecesOfState | None = None  # of the state that is handed over, or was the last to be handed over
        self._state = FetchedState(self._answers_with_state, self._parts, plan, weights, self._own)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Finish the work of the master's own shard. Shards on other ranks end when their ranks end."""
        if self._own is not None:
            self._own.shard.__exit__(kind, error, trace)

    # the start

    def take_up(self, found: Checkpoint | None) -> None:
        """Load the weights of a checkpoint, if any, and keep the checkpoint for `hand_out`, which sends it to the shards."""
        self._found = found
        if found is not None:
            self._weights.load(found.tensors(checkpoint.MODEL))
            self._norm.take_up(found.facts)
        if self._own is not None:
            self._own.shard.take_up(found)

    def hand_out(self, lacking: Iterable[int]) -> None:
        """Send the shards their parts of the checkpoint.

        Without a checkpoint, send the weights to the shards of ranks in `lacking`.
        """
        alike: dict[tuple[int, ...], list[int]] = {}
        lacks = set(lacking)
        for rank, part in self._remote.items():
            if self._found is not None or rank in lacks:
                alike.setdefault(tuple(part.groups), []).append(rank)
        for ranks in alike.values():
            files, facts = starting_state(self._parts[ranks[0]], self._found, self._weights)
            self._link.send(ranks, Kind.STATE, pack_files(files, facts), tag=SHARD_TAG)

    # rounds

    def admit(self, ranks: Iterable[int], version: int) -> None:
        """From now on, wait also for gradients of `ranks` that are computed on `version` or later."""
        self._ranks |= frozenset(ranks)
        self._order("admit", ranks=sorted(ranks), version=version)

    def open(self, now: Round) -> None:
        """Open round `now` for all groups, in all shards."""
        self._round, self._unfinished = now, {rank: set(part.groups) for rank, part in self._remote.items()}
        self._copied.open()
        self._ranks -= self._withdrawn
        self._order("open", version=now.version, first_step=now.first_step, steps=now.steps, lr=self._rate(now))

    def offer(self, frame: Frame) -> bool:
        """Take a gradient for the master's own shard. Raises WireError if the group belongs only to other ranks."""
        return self._own_of(frame).offer(frame)

    def keep(self, frame: Frame) -> bool:
        """Keep a gradient for the master's own shard. Raises WireError if the group belongs only to other ranks."""
        return self._own_of(frame).keep(frame)

    def _own_of(self, frame: Frame) -> Shard:
        if self._own is None or frame.group not in self._parts[MASTER].groups:
            frame.release()
            raise WireError(f"group {frame.group} has its root on another rank", frame.sender)
        return self._own.shard

    def excuse(self, rank: int, version: int) -> None:
        """Expect no more gradients of `rank` that are computed on `version`. The round does not wait for them.

        The order is not given to shards that have the same groups. These shards must count the same gradients, but an order
        could overtake a gradient at some of them. In this case a frame that cannot be read ends the job instead.
        """
        if not self._copied.exist:
            self._order("excuse", rank=rank, version=version)

    def leave_out(self, rank: int, version: int) -> None:
        """Tell the master's own shard that `rank` sends no more gradients computed on `version`.

        `rank` itself tells the other shards, after its gradients.
        """
        if self._own is not None:
            self._own.shard.leave_out(rank, version)

    def withdraw(self, rank: int) -> dict[int, int]:
        """Go on without `rank`, as described for the class. A group that only the shard of `rank` had open is then closed.

        Returns, by group, the rank's last step whose gradient was taken; an empty dictionary if the rank cannot come back.
        Raises TransportError if the run cannot go on.
        """
        if self.needs_all or self._remote.keys() <= {rank} or (self.readmits and rank in self.holders):
            raise cannot_go_on(f"rank {rank}")
        if self.readmits:
            return self._do_without(rank)
        self._withdrawn.add(rank)
        self._calls.forget(rank)
        for kept in (self._parts, self._remote, self._unfinished):
            kept.pop(rank, None)
        try:
            withdraw_from_all(self._calls, rank, self._link.job, self._patience, is_open=any(self._unfinished.values()))
        except WireError as error:
            raise broken(rank if error.source is None else error.source, error) from error
        for event in self._copied.withdraw(rank):
            self._link.inbox.post(event)
        if (found := self._norm.withdraw(rank)) is not None:
            self._settle_norm(found)
        return {}

    def _do_without(self, rank: int) -> dict[int, int]:
        """Make all shards stop waiting for `rank`, which has no shard.

        Returns, by group, the last step of `rank` whose gradient was taken.
        """
        taken: dict[int, int] = {}
        for holder, found in self._results("do_without", self._patience, rank=rank).items():
            try:
                taken |= {int(group): int(step) for group, step in found}
            except (TypeError, ValueError) as error:
                raise broken(holder, WireError(str(error), holder)) from error
        return taken

    @property
    def holders(self) -> frozenset[int]:
        """The other ranks that have shards."""
        return frozenset(self._remote)

    def force(self) -> None:
        """Close all open groups in all shards. Raises TransportError if workers have shards."""
        if self.readmits:
            self._order("force")
            return
        raise TransportError("a round cannot be closed without the ranks that update weights; go on with --resume")

    @property
    def untouched(self) -> bool:
        """True if all groups are open in all shards and no gradient has come for them. Always False if workers have shards."""
        return self.readmits and all(found is True for found in self._results("untouched", self._patience).values())

    @property
    def unchanged(self) -> bool:
        """Always False, since groups close on other ranks, and the master learns of it later."""
        return False

    @property
    def idle(self) -> frozenset[int]:
        """All ranks that take part, since this property is only used between rounds."""
        return self._ranks

    @property
    def missing(self) -> frozenset[int]:
        """Ranks whose gradients some open group still awaits, and ranks whose shards do not answer.

        If there are no such ranks, the property holds the ranks whose shards have open groups.
        """
        answers = self._results("missing", ANSWER_SECONDS, patient=False)
        found = self._parts.keys() - answers.keys()
        for rank, named in answers.items():
            found |= self._ranks & set(named) if isinstance(named, list) and all(type(each) is int for each in named) else {rank}
        return frozenset(found or {rank for rank, groups in self._unfinished.items() if groups})

    def outlier(self) -> str:
        """Return a line about a push to the master's own shard whose norm is out of proportion; "" if there is no such push."""
        return "" if self._own is None else self._own.shard.outlier()

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent on decoding, updating and sending since the last call, by the name of the work.

        Each is the longest time of any shard.
        """
        if self._own is not None:
            self._note_seconds(self._own.shard.seconds())
        found, self._seconds = self._seconds, {}
        return found

    def _note_seconds(self, seconds: Mapping[str, float]) -> None:
        for name, value in seconds.items():
            self._seconds[name] = max(self._seconds.get(name, 0.0), value)

    def take(self, frame: Frame) -> ShardEvent | StatePart | None:
        """Return the event in a frame from a shard; None if only this handle uses the event.

        Late answers, and all frames of withdrawn ranks, are dropped. Raises PsnodeError for an event that cannot be true,
        since the round would not end without the true event. If shards have the same groups, raises DivergedError if they add
        different gradients, and TransportError if one shard cannot read a frame that other shards may have read.
        """
        self._calls.heard(frame.sender)
        if frame.kind is Kind.ANSWER and self._pieces is not None and self._pieces.awaits(frame):
            return self._pieces.take(frame)
        if frame.kind is Kind.ANSWER or frame.sender in self._withdrawn:
            frame.release()
            return None
        try:
            event = unpack_event(frame.body, frame.sender)
            self._check(event, frame.sender)
        except WireError as error:
            raise broken(frame.sender, error) from error
        frame.release()
        if isinstance(event, Took):
            self._note_seconds(event.seconds)
            return event
        elif isinstance(event, Squares):
            self.note_squares(event, frame.sender)
        elif isinstance(event, GroupClosed):
            return self._close(event, frame.sender)
        elif isinstance(event, WireError) and event.source in self._withdrawn:
            return None
        elif isinstance(event, WireError) and self._copied.exist:
            raise TransportError(
                f"rank {frame.sender} cannot read a frame that others may have read: {event}; go on with --resume"
            )
        elif not self._copied.exist or frame.sender in self._copied.speakers:
            return event
        return None

    def _close(self, event: GroupClosed, rank: int) -> GroupClosed | None:
        """Record that the shard of `rank` has closed a group.

        If all shards of the group have now closed it, return one event for all these shards, otherwise None.
        """
        self._unfinished[rank].discard(event.group)
        self._state.changed()
        if self._copied.is_open(event.group):
            self._tell(event.group)
        return self._copied.close(event, rank)

    def _order(self, name: str, **arguments: Any) -> None:
        """Give an order to all shards."""
        self._calls.order(name, **arguments)
        if self._own is not None:
            self._own.obey(name, arguments)

    def _results(self, name: str, seconds: float, *, patient: bool = True, **arguments: Any) -> dict[int, Any]:
        """Give an order to all shards. Return the results by rank, see ShardCalls.results."""
        found = {} if self._own is None else {MASTER: self._own.obey(name, arguments)}
        return found | self._calls.results(name, seconds, patient=patient, **arguments)

    def _check(self, event: ShardEvent, sender: int) -> None:
        """Raise WireError for an event that cannot have happened in the open round of the shard on rank `sender`."""
        sound = sender in self._parts and fits(
            event, self._parts[sender], self._unfinished.get(sender, set()), self._round.number, self._ranks,
            summed=self._norm.has(sender),
        )  # fmt: skip
        if not sound:
            raise WireError(f"{type(event).__name__} does not fit the open round", sender)

    def note_squares(self, event: Squares, rank: int = MASTER) -> None:
        """Take the squared norms of the groups of the shard on `rank`. Those of the master's own shard come from the inbox.

        When the norm of all groups is known, it is told to the shards, unless every shard has all groups.
        """
        if (found := self._norm.add(event, rank)) is not None:
            self._settle_norm(found)

    def _settle_norm(self, found: FoundNorm) -> None:
        if not all(part.is_whole for part in self._parts.values()):
            self._order("norm", norm=found.norm, counts=found.counts)

    @property
    def gradient_norm(self) -> float | None:
        """L2 norm of the last version's mean gradient before clipping; None without --clip-grad-norm."""
        return self._norm.norm

    # weights

    def send_to(self, ranks: Iterable[int]) -> None:
        """From now on, send new versions only to `ranks`."""
        if (chosen := sorted(ranks)) != self._recipients:
            self._recipients = chosen
            self._order("send_to", ranks=chosen)

    def send_whole(self, ranks: Sequence[int], version: int) -> int:
        """Make the shards send the weights of `version` to `ranks`. Return the bytes of all frames."""
        sent = self._results("send_whole", self._patience, ranks=list(ranks), version=version)
        return sum(nbytes for nbytes in sent.values() if type(nbytes) is int)

    def behind(self, rank: int) -> frozenset[int]:
        """Return an empty set, since every shard sends directly to all readers."""
        return frozenset()

    @property
    def replica(self) -> Floats:
        """y, the weights that every recipient holds, flat in the order of the plan. It is fetched if it is not known."""
        return self._state.replica

    def digest(self) -> str:
        """Return xxh3_128 of the bytes of all weights."""
        return self._state.digest()

    # checkpoints

    def state(self) -> ShardState:
        """Return copies of the state: the model, the optimizer's memories, and y, the weights that every recipient holds."""
        return self._state.copies()

    def hand_over(self, version: int) -> ComingState:
        """Order the shards to hand over their state of `version`, the newest. Their parts come in events of type StatePart.

        If shards have the same groups, only the shard with the lowest rank hands over its state.
        """
        ranks = self._calls.ranks[:1] if self._copied.exist else self._calls.ranks
        found = ComingState(self._plan, {rank: self._parts[rank] for rank in ranks}, self._weights, self._state_seconds)
        if self._own is not None:
            found.hold(self._parts[MASTER], self._own.files())
        self._calls.order("hand_over", to=ranks)
        self._pieces = PiecesOfState(self._calls, version, ranks)
        return found

    def memory(self) -> list[list[torch.Tensor]]:
        """Return an empty list for each group, since `state` returns copies."""
        return [[] for _ in self._plan.groups]

    def before_change(self, tell: Callable[[int], None]) -> None:
        """From now on, call `tell` with every group that has changed on another rank, when the master learns of the change.

        So the state of the previous version is available only while every group waits for the gradient of some worker.
        """
        self._tell = tell
        if self._own is not None:
            self._own.shard.before_change(tell)

    def norms(self) -> Tensors:
        """Return the norms of pushes with which later pushes are compared."""
        return self._state.norms()

    def facts(self) -> dict[str, float]:
        """Return the estimate of the next version's norm, if --clip-estimate is `previous`."""
        return self._norm.facts()

    def waiting(self) -> Tensors:
        """Return an empty dictionary, since no gradient waits for a later round in a run with several shards."""
        return {}

    @property
    def _state_seconds(self) -> float:
        return self._patience + _STATE_MODELS * 4 * self._plan.size / _LEAST_RATE

    def _answers_with_state(self) -> Iterator[tuple[int, Frame]]:
        """Ask one shard after another for its state. If shards have the same groups, the first answer is enough."""
        for rank in self._calls.ranks:
            answers = self._calls.ask("state", self._state_seconds, to=[rank])
            yield from answers.items()
            if answers and self._copied.exist:
                return
        if self._copied.exist:
            raise cannot_go_on("any of its workers")
