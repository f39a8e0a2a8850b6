"""The master's handle of shards that lie on workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import torch

from psnode.codecs.arrays import Floats
from psnode.errors import TransportError, WireError
from psnode.exchange.routes.route import Route
from psnode.exchange.shard.global_norm_clipping import GRADIENT_NORM
from psnode.exchange.shard.remote.copied_groups import CopiedGroups
from psnode.exchange.shard.remote.gathered_state import check, files_of, joined
from psnode.exchange.shard.remote.shard_calls import ShardCalls, broken
from psnode.exchange.shard.remote.shard_messages import (
    ShardEvent,
    Squares,
    pack_files,
    unpack_event,
    unpack_files,
)
from psnode.exchange.shard.remote.withdrawal import withdraw_from_all
from psnode.exchange.shard.shard_events import GroupClosed, NotApplied, Refused, Scaled, Took
from psnode.exchange.shard.state import ShardState, own_tensors
from psnode.exchange.update.served_model import ServedModel
from psnode.plans.groups import Plan
from psnode.plans.part import PlanPart, part_of
from psnode.protocol.channel import SHARD_TAG, FrameChannel
from psnode.protocol.round import Round
from psnode.protocol.wire import Frame, Kind
from psnode.records import checkpoint, state_names
from psnode.records.checkpoint import Checkpoint

Tensors = dict[str, torch.Tensor]
_MISSING_SECONDS = 5.0  # a shard that does not answer within this time holds up the round itself


class DistributedShard:
    """Handle of the shards of all ranks in `routes`, none of which is the master's.

    Shards may have the same groups. A group is closed when it is closed in all of them, with the same gradients; other events
    about it, and its state, are those of its lowest rank.

    Every shard carries out orders one after another; `state`, `digest`, `replica` and `missing` wait for the answers. The
    weights x are fetched when they are needed: for checkpoints, and at the end. `weights`: the master's model, whose x is then
    the newest. `rate`: returns the learning rate of a round. `patience`: the longest wait for an answer, in seconds. `estimates`:
    gradients are clipped by the norm of the version before.

    If shards have different groups, the run cannot go on without a rank: `withdraw` raises TransportError, and so does `force`.
    If all shards have the same groups, `withdraw` has them agree on the gradients of the lost rank in the open round, and tells
    this rank to leave: it would need weights and memories of all versions that it misses.
    """

    on_host: Sequence[str] = ()
    gradient_norm: float | None = None  # of the last version, before clipping; None without --clip-grad-norm
    readmits, is_remote = False, True
    runs_own_code = False  # here, where values would have to be copied before it runs

    def __init__(
        self, link: FrameChannel, plan: Plan, routes: Sequence[Route], weights: ServedModel,
        rate: Callable[[Round], float], patience: float, *, estimates: bool = False,
    ) -> None:  # fmt: skip
        self._link, self._plan, self._weights, self._rate, self._patience = link, plan, weights, rate, patience
        roots = sorted({root for route in routes for root in route.roots})
        self._parts: dict[int, PlanPart] = {
            root: part_of(plan, [group for group, route in enumerate(routes) if root in route.roots]) for root in roots
        }
        self._copied = CopiedGroups(routes)
        self._found: Checkpoint | None = None
        self.needs_all = not self._copied.exist
        self._calls = ShardCalls(link, roots, needs_all=self.needs_all)
        self._withdrawn: set[int] = set()
        self._round = Round.after(0)  # the open round, or the last one
        self._unfinished: dict[int, set[int]] = {}  # its open groups, by the rank of their shard
        self._ranks: frozenset[int] = frozenset()
        self._recipients: list[int] | None = None
        self._seconds: dict[str, float] = {}
        self._squares: dict[int, Squares] = {}  # of the open round, by the rank of the shard
        self._estimates = estimates
        self._estimate: float | None = None  # the norm of the last version with a gradient
        self._tell: Callable[[int], None] = lambda group: None
        self._known: dict[str, Tensors] | None = None  # the state of the newest version, until a group changes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Do nothing: the shards end with their workers."""

    # the start

    def take_up(self, found: Checkpoint | None) -> None:
        """Note the checkpoint from which `hand_out` will have the shards continue, and load its weights."""
        self._found = found
        if found is not None:
            self._weights.load(found.tensors(checkpoint.MODEL))
            self._estimate = found.facts.get(GRADIENT_NORM)

    def hand_out(self, lacking: Iterable[int]) -> None:
        """Send each shard its part of the checkpoint. Without one, send the weights to shards of the ranks in `lacking`."""
        alike: dict[tuple[int, ...], list[int]] = {}
        lacks = set(lacking)
        for rank, part in self._parts.items():
            if self._found is not None or rank in lacks:
                alike.setdefault(tuple(part.groups), []).append(rank)
        for ranks in alike.values():
            part = self._parts[ranks[0]]
            if self._found is not None:
                self._hand(ranks, files_of(part, self._found), self._found.facts)
            else:
                state = self._weights.state()
                model = own_tensors(part, {name: state[name] for name in self._plan.slices()}, memories=False)
                replica = {f"replica/{name}": value.reshape(-1) for name, value in model.items()}
                self._hand(ranks, {checkpoint.MODEL: model, checkpoint.REPLICA: replica, checkpoint.OPTIMIZER: {}}, {"step": 0})

    def _hand(self, ranks: Sequence[int], files: Mapping[str, Tensors], facts: Mapping[str, Any]) -> None:
        kept = {name: value for name, value in facts.items() if isinstance(value, int | float | str)}
        self._link.send(ranks, Kind.STATE, pack_files(files, kept), tag=SHARD_TAG)

    # rounds

    def admit(self, ranks: Iterable[int], version: int) -> None:
        """Wait for gradients of `ranks` computed on `version` or later."""
        self._ranks |= frozenset(ranks)
        self._calls.order("admit", ranks=sorted(ranks), version=version)

    def open(self, now: Round) -> None:
        """Open round `now` for all groups."""
        self._round, self._unfinished = now, {rank: set(part.groups) for rank, part in self._parts.items()}
        self._copied.open()
        self._ranks -= self._withdrawn
        self._calls.order("open", version=now.version, first_step=now.first_step, steps=now.steps, lr=self._rate(now))

    def offer(self, frame: Frame) -> bool:
        """Raise WireError, as no group has its root here."""
        frame.release()
        raise WireError(f"group {frame.group} has its root on another rank", frame.sender)

    keep = offer

    def excuse(self, rank: int, version: int) -> None:
        """Expect no more gradients computed on `version` from `rank`; their round does not wait for them.

        Shards that have the same groups have to count the same gradients, and an order could overtake one of them. There a frame
        that cannot be read ends the job.
        """
        if not self._copied.exist:
            self._calls.order("excuse", rank=rank, version=version)

    def leave_out(self, rank: int, version: int) -> None:
        """Do nothing: the shards hear of it from `rank`, behind its last gradient, so that all count the same ones."""

    def withdraw(self, rank: int) -> dict[int, int]:
        """Go on without `rank`, see the class. Groups that only its shard had open are closed by this.

        Returns an empty dictionary, as the rank does not come back. Raises TransportError if the run cannot go on.
        """
        if self.needs_all or set(self._parts) <= {rank}:
            raise self._calls.cannot_go_on(f"rank {rank}")
        self._withdrawn.add(rank)
        self._calls.forget(rank)
        for kept in (self._parts, self._unfinished, self._squares):
            kept.pop(rank, None)
        try:
            withdraw_from_all(self._calls, rank, self._link.job, self._patience, is_open=any(self._unfinished.values()))
        except WireError as error:
            raise broken(rank if error.source is None else error.source, error) from error
        self._link.fail(rank, TransportError("this rank was put aside and lacks updates: the job goes on without it"))
        for event in self._copied.withdraw(rank):
            self._link.inbox.post(event)
        if len(self._squares) == len(self._parts):
            self._settle_norm()
        return {}

    def force(self) -> None:
        """Raise TransportError, like `withdraw`."""
        raise TransportError("a round cannot be closed without the ranks that update weights; go on with --resume")

    @property
    def untouched(self) -> bool:
        """False: gradients do not come here."""
        return False

    @property
    def unchanged(self) -> bool:
        """False: groups close elsewhere."""
        return False

    @property
    def idle(self) -> frozenset[int]:
        """All ranks: this is asked between rounds."""
        return self._ranks

    @property
    def missing(self) -> frozenset[int]:
        """Ranks whose gradients some open group still awaits, and those whose shard does not answer.

        If there are none, these are the ranks whose shards have open groups.
        """
        answers = self._calls.results("missing", _MISSING_SECONDS, patient=False)
        found = self._parts.keys() - answers.keys()
        for rank, named in answers.items():
            found |= self._ranks & set(named) if isinstance(named, list) and all(type(each) is int for each in named) else {rank}
        return frozenset(found or {rank for rank, groups in self._unfinished.items() if groups})

    def outlier(self) -> str:
        """Return "": no push is seen here."""
        return ""

    def seconds(self) -> dict[str, float]:
        """Return the seconds of decoding, updating and sending since the last call, by name, of the shard that took longest."""
        found, self._seconds = self._seconds, {}
        return found

    def take(self, frame: Frame) -> ShardEvent | None:
        """Return the event in a frame of a shard; None if this handle alone uses it.

        Late answers are dropped, and all frames of withdrawn ranks. Raises PsnodeError for an event that cannot be true: without
        the true one, the round would not end. If shards have the same groups, raises DivergedError if they add different
        gradients, and TransportError if one of them cannot read a frame that others may have read.
        """
        self._calls.heard(frame.sender)
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
            for name, value in event.seconds.items():
                self._seconds[name] = max(self._seconds.get(name, 0.0), value)
            return event
        elif isinstance(event, Squares):
            self._add_up(event, frame.sender)
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
        """Note that the shard of `rank` has closed a group. Return the event for all shards once the last one has closed it."""
        self._unfinished[rank].discard(event.group)
        self._known = None
        if self._copied.is_open(event.group):
            self._tell(event.group)
        return self._copied.close(event, rank)

    def _check(self, event: ShardEvent, sender: int) -> None:
        """Raise WireError for an event that the shard of rank `sender` cannot have had in the open round."""
        open_groups = self._unfinished.get(sender, set())
        match event:
            case GroupClosed():
                sound = event.group in open_groups and event.version == self._round.number and event.nbytes >= 0
                ranks = {added.rank for added in event.added} | {clipped.rank for clipped in event.clipped}
                sound = sound and ranks <= self._ranks
                sound = sound and all(0 <= clipped.factor < 1 for clipped in event.clipped)
            case Squares():
                sound = set(event.squares) == set(self._parts[sender].groups) if sender in self._parts else False
                sound = sound and sender not in self._squares
                sound = sound and all(0 <= square < math.inf for square in event.squares.values())
            case Refused() | Scaled():
                sound = event.group in open_groups and event.sender in self._ranks
            case NotApplied():
                sound = event.group in open_groups
            case Took():
                sound = sender in self._parts and all(0 <= value < math.inf for value in event.seconds.values())
                sound = sound and event.received >= 0
            case _:
                sound = sender in self._parts
        if not sound:
            raise WireError(f"{type(event).__name__} does not fit the open round", sender)

    def _add_up(self, event: Squares, rank: int) -> None:
        """Take the squared norms of the groups of a shard, and add up those of all shards when they have come.

        Shards that have only a part of the groups are then told the norm.
        """
        self._squares[rank] = event
        if len(self._squares) == len(self._parts):
            self._settle_norm()

    def _settle_norm(self) -> None:
        squares = {group: square for each in self._squares.values() for group, square in each.squares.items()}
        added = any(each.added for each in self._squares.values())
        norm = math.sqrt(sum(squares[group] for group in sorted(squares)))
        if not all(part.is_whole for part in self._parts.values()):
            self._calls.order("norm", norm=norm, counts=added)
        if added:
            self._estimate = norm
        self.gradient_norm, self._squares = norm, {}

    # weights

    def send_to(self, ranks: Iterable[int]) -> None:
        """Send new versions only to `ranks`."""
        if (chosen := sorted(ranks)) != self._recipients:
            self._recipients = chosen
            self._calls.order("send_to", ranks=chosen)

    def send_whole(self, ranks: Sequence[int], version: int) -> int:
        """Have the weights of `version` sent to `ranks`. Return the bytes of all frames."""
        sent = self._calls.results("send_whole", self._patience, ranks=list(ranks), version=version)
        return sum(nbytes for nbytes in sent.values() if type(nbytes) is int)

    def behind(self, rank: int) -> frozenset[int]:
        """Return no ranks: every shard sends straight to all readers."""
        return frozenset()

    @property
    def replica(self) -> Floats:
        """y, flat in the order of the plan."""
        files = self._state()
        named = files.get(checkpoint.REPLICA) or {f"replica/{name}": value for name, value in files[checkpoint.MODEL].items()}
        found: Floats = self._flat({name.partition("/")[2]: value for name, value in named.items()}).numpy()
        return found

    def digest(self) -> str:
        """Return xxh3_128 of the bytes of all weights."""
        self._weights.vector.copy_(self._flat(self._state()[checkpoint.MODEL]))
        return self._weights.digest()

    # checkpoints

    def state(self) -> ShardState:
        """Return copies of model, optimizer and y."""
        files = self._state()
        vector = self._flat(files[checkpoint.MODEL])
        average = files.get(checkpoint.EMA) or {}
        return ShardState(
            self._weights.state(vector),
            dict(files.get(checkpoint.OPTIMIZER, {})),
            dict(files.get(checkpoint.REPLICA, {})),
            self._weights.state(self._flat(average)) if average else {},
        )

    def memory(self) -> list[list[torch.Tensor]]:
        """Return empty lists, as `state` returns copies."""
        return [[] for _ in self._plan.groups]

    def before_change(self, tell: Callable[[int], None]) -> None:
        """Call `tell` from now on with every group that has changed, when the master hears of it.

        So the version before can be had only while some worker computes, whose gradient all groups wait for.
        """
        self._tell = tell

    def norms(self) -> Tensors:
        """Return the norms with which later pushes are compared."""
        return dict(self._state().get(checkpoint.NORMS, {}))

    def facts(self) -> dict[str, float]:
        """Return the estimate of the next version's norm, if --clip-estimate is previous."""
        return {GRADIENT_NORM: self._estimate} if self._estimates and self._estimate is not None else {}

    def waiting(self) -> Tensors:
        """Return an empty dictionary: late gradients do not wait."""
        return {}

    def _flat(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        vector = torch.empty(self._plan.size)
        for name, where in state_names.places(self._plan).items():
            vector[where] = tensors[name].reshape(-1)
        return vector

    def _answers_with_state(self) -> dict[int, Frame]:
        """Return the answers with the state of all groups. If all shards are alike, another one speaks for one that is lost."""
        if self.needs_all:
            return self._calls.ask("state", self._patience, to=self._copied.speakers)
        for rank in self._calls.ranks:
            if answers := self._calls.ask("state", self._patience, to=[rank]):
                return answers
        raise self._calls.cannot_go_on("any of its workers")

    def _state(self) -> dict[str, Tensors]:
        """Return the tensors of all groups by file, fetched once a version."""
        if self._known is None:
            parts = []
            for rank, frame in sorted(self._answers_with_state().items()):
                try:
                    files, _ = unpack_files(frame.body, rank)
                    check(self._parts[rank], files, rank)
                except WireError as error:
                    raise broken(rank, error) from error
                frame.release()
                parts.append((self._parts[rank], files))
            self._known = joined(parts)
        return self._known
