"""Shard: the groups that have one rank as their root. It takes gradients and sends new weights to the workers:

offer -> Rounds: is the gradient due, and in which order is it added?
      -> Reduction: the gradient is decoded, checked, and added to the group's sum
      -> Rule: the round closes, and the optimizer updates x
      -> Downlink: y moves towards x, and the change is sent to every recipient
      -> GroupClosed, in the inbox of this rank
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

import torch

from psnode.codecs.arrays import Floats
from psnode.codecs.registry import is_from_outside
from psnode.config import Config
from psnode.errors import ConfigurationError, WireError
from psnode.exchange.flow_control import FlowControl
from psnode.exchange.routes.route import Route
from psnode.exchange.shard.aggregator import get_aggregator
from psnode.exchange.shard.arithmetic import Arithmetic, HostArithmetic
from psnode.exchange.shard.consistency import Rule
from psnode.exchange.shard.downlink import Downlink
from psnode.exchange.shard.executor import GroupExecutor, lane_count
from psnode.exchange.shard.global_norm_clipping import GlobalNorm
from psnode.exchange.shard.gpu.on_device import place
from psnode.exchange.shard.reduction import Reduction
from psnode.exchange.shard.remote.shared_norm import SharedNorm, ToldNorm
from psnode.exchange.shard.rounds import Origin, Rounds, Slot
from psnode.exchange.shard.shard_events import Squares
from psnode.exchange.shard.state import ShardState, own_tensors, with_copies_of_the_rest
from psnode.exchange.shard.unapplied import pack, unpack
from psnode.exchange.stopwatch import Stopwatch
from psnode.exchange.update.device_copies import DeviceCopies
from psnode.exchange.update.moving_average import MovingAverage
from psnode.exchange.update.parameters import Parameters
from psnode.exchange.update.weight_vector import Constraint, Weights
from psnode.exchange.update.whole_updates import MakeOptimizer
from psnode.plans.coding import Coding
from psnode.plans.part import PlanPart, part_of
from psnode.plans.roles import MASTER
from psnode.protocol.channel import FrameChannel
from psnode.protocol.round import Round
from psnode.protocol.wire import Frame
from psnode.records import checkpoint, state_names
from psnode.records.checkpoint import Checkpoint
from psnode.records.timeline import Tracer
from psnode.tasks.parameter_groups import ParameterGroup

Tensors = dict[str, torch.Tensor]


class Shard:
    """Shard with the open rounds of some groups of a plan, their reduction, x with the optimizer, and y with the downlink.

    x are the weights that the optimizer updates, and y the weights that every recipient holds. Only one thread may call a
    shard. Arithmetic is done in lanes, which post GroupClosed, Refused, Scaled and NotApplied to the inbox of `link`.

    `groups`: the groups' numbers in the plan. `weights`: x of these groups, one after another. `routes`: the routes of all
    groups of the plan. `rate`: returns the learning rate of a round's gradients. `device`: the device that computes sums, x,
    the optimizer's memories and y, if possible. In this case the shard's methods return copies of the newest values.
    `flow_control`: the flow control of this rank as a root, by default a new one.
    """

    def __init__(
        self,
        coding: Coding,
        groups: Iterable[int],
        config: Config,
        weights: Weights,
        link: FrameChannel,
        rule: Rule,
        rate: Callable[[Round], float],
        routes: Sequence[Route],
        tracer: Tracer,
        *,
        constraint: Constraint | None = None,
        parameter_groups: Sequence[ParameterGroup] = (),
        own_optimizer: MakeOptimizer | None = None,
        device: torch.device | None = None,
        flow_control: FlowControl | None = None,
    ) -> None:
        self._part = part = part_of(coding.plan, groups)
        _require_whole(part, config, constraint)
        self._rate = rate
        self._round = Round.after(0)
        self._watch = Stopwatch()
        self._weights = weights
        self._parameters = Parameters(
            weights.vector, part.own, config, coding.scheme.momentum, coding.gathering, parameter_groups, own_optimizer
        )
        self._routes = {group: routes[group].of_root(link.rank) for group in part.groups}
        lead = coding.scheme.lead(config.downlink_lead)
        flow_control = flow_control or FlowControl(4 * part.own.size)
        self._downlink = Downlink(
            coding.down, weights.vector.numpy(), part, link, self._routes, flow_control, seed=config.seed, lead=lead
        )
        self._lanes = GroupExecutor(link.inbox, lane_count(len(part.groups)), part.groups)
        self._average = MovingAverage(weights.vector, part.own, config.ema_decay) if config.ema_decay is not None else None
        self._norm = _norm_of(part, config, link)
        self._constrained = constraint is not None
        codecs, aggregator = coding.up, get_aggregator(coding.scheme.aggregator)
        own_codec = any(is_from_outside(codec) for codec in (*codecs, *(self._downlink.codecs or ())))
        self._own_code = self._constrained or own_optimizer is not None or own_codec
        arithmetic: Arithmetic = HostArithmetic(part.own, codecs, aggregator, self._parameters)
        self._device_copies: DeviceCopies | None = None
        self.leads_own_sgd = bool(lead) and config.downlink_lead is None and self._parameters.has_own_sgd
        self.on_host: list[str] = []  # lines about work that stays on the host in spite of `device`
        if device is not None:
            placed = place(
                part.own, config, codecs, aggregator, self._parameters, self._downlink, device, constrained=self._constrained
            )
            if isinstance(placed, str):
                self.on_host = [f"all is added and updated on the host: {placed}"]
            else:
                self._device_copies, arithmetic, self._downlink.mover, self.on_host = placed
        self._reduction = Reduction(
            part,
            coding,
            weights,
            aggregator,
            arithmetic,
            self._downlink,
            self._lanes,
            self._watch,
            tracer,
            seed=config.seed,
            constraint=constraint,
            norm_cap=config.norm_cap or None,
            global_norm=self._norm,
            average=self._average,
            weight_unit=config.weight_unit,
        )
        by_rank = config.aggregate_order == "rank"
        slots = [Slot(group) for group in part.groups]
        self._rounds = Rounds[Frame](slots, rule, by_rank=by_rank, add=self._add, close=self._close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Finish all queued work and end the lanes."""
        self._lanes.close()

    # rounds

    def admit(self, ranks: Iterable[int], version: int) -> None:
        """From now on, wait also for gradients of `ranks` that are computed on `version` or later."""
        self._rounds.admit(ranks, version)

    def open(self, now: Round) -> None:
        """Open round `now` for all groups. Before the call, each group must be closed, or open without a gradient."""
        self._round = now
        self._rounds.open(now.version)

    def offer(self, frame: Frame) -> bool:
        """Take a gradient frame. Return False if it comes too late, has come before, or is from a rank that is not awaited."""
        return self._is_of_a_round(frame) and self._rounds.offer(_origin(frame), frame)

    def keep(self, frame: Frame) -> bool:
        """Keep a gradient that comes after the last round, for a resumed run. Return False if the consistency rule drops it."""
        return self._is_of_a_round(frame) and self._rounds.keep(_origin(frame), frame)

    def _is_of_a_round(self, frame: Frame) -> bool:
        """Return True if the frame's step is the last step of the round on the frame's version."""
        return frame.step == self._round.at(frame.version).last_step

    @property
    def needs_all(self) -> bool:
        """Always False, since the run can go on without a worker."""
        return False

    @property
    def readmits(self) -> bool:
        """Always True, since a worker that was withdrawn may take part again when it has the whole weights."""
        return True

    @property
    def is_remote(self) -> bool:
        """Always False, since the weights are on this rank."""
        return False

    @property
    def holders(self) -> frozenset[int]:
        """An empty set, since no other rank has a part of these weights."""
        return frozenset()

    def take(self, frame: Frame) -> object:
        """Raise WireError, since a frame from another rank's shard must not come: no other rank is the root of a group."""
        frame.release()
        raise WireError(f"the master does not expect {frame.kind.name} frames", frame.sender)

    def note_squares(self, event: Squares) -> None:
        """Do nothing, since no other shard needs the squared norms."""

    def excuse(self, rank: int, version: int) -> None:
        """Expect no more gradients of `rank` that are computed on `version`. The round does not wait for them."""
        self._rounds.excuse(rank, version)

    leave_out = excuse

    def withdraw(self, rank: int) -> dict[int, int]:
        """Stop waiting for `rank`. Gradients that it has sent count.

        Returns, by group, the last step of `rank` whose gradient was taken.
        """
        return {slot.group: self._round.at(base).finished for slot, base in self._rounds.withdraw(rank).items()}

    def force(self) -> None:
        """Close all open groups with the gradients received so far, even if a group has none."""
        self._rounds.force()

    @property
    def untouched(self) -> bool:
        """True if all groups are open and no gradient has come for any of them."""
        return self._rounds.untouched

    @property
    def unchanged(self) -> bool:
        """True if all groups are open. In this case y is still the version on which workers compute the round's gradients."""
        return self._rounds.all_open

    @property
    def idle(self) -> frozenset[int]:
        """Ranks that send nothing more before the open round is complete and the next version is published."""
        return self._rounds.idle

    @property
    def missing(self) -> frozenset[int]:
        """Ranks whose gradients some open group still awaits."""
        return self._rounds.missing

    def settle_norm(self, norm: float, *, counts: bool) -> None:
        """Clip and update the groups that wait for the norm over all shards. See SharedNorm.settle."""
        if isinstance(self._norm, SharedNorm):
            self._reduction.move(self._norm.settle(norm, counts=counts), self._round.number, self._rate(self._round))

    def _add(self, frame: Frame) -> None:
        """Queue the addition of a gradient.

        If residuals are in units of weights, a stale gradient is weighted, so that it counts with the learning rate of the
        round in which it was computed.
        """
        rescaled = self._reduction.rescales and frame.version != self._round.version
        rate = self._rate(self._round)
        self._reduction.add(frame, self._rate(self._round.at(frame.version)) / rate if rescaled and rate else 1.0)

    def _close(self, slot: Slot) -> None:
        self._reduction.close(slot.group, self._round.number, self._rate(self._round), alone=self._rounds.alone)

    # weights

    def send_to(self, ranks: Iterable[int]) -> None:
        """From now on, send new versions of a group only to its readers in `ranks`. Call this while no group is open."""
        self._downlink.send_to(ranks)

    def send_whole(self, ranks: Sequence[int], version: int) -> int:
        """Send y, the weights of `version`, to `ranks`. Each group goes only to its readers in `ranks`.

        Returns the bytes of all frames together.
        """
        return sum(self._downlink.send_dense(group, version, ranks) for group in self._part.own.groups)

    def behind(self, rank: int) -> frozenset[int]:
        """Return the ranks that get weights through `rank`, directly or indirectly."""
        routes = {id(route): route for route in self._routes.values()}  # most groups share a route
        return frozenset(other for route in routes.values() for other in route.behind(rank))

    @property
    def replica(self) -> Floats:
        """y, the shard's weights that every recipient holds, flat in the order of the plan."""
        if self._device_copies is None:
            return self._downlink.replica
        found: Floats = self._device_copies.copy(self._downlink.home).numpy()
        return found

    def digest(self) -> str:
        """Return xxh3_128 of the bytes of all weights, see Weights.digest."""
        if self._device_copies is None:
            return self._weights.digest()
        return self._weights.digest(self._device_copies.copies([self._weights.vector]))

    # checkpoints and records

    @property
    def runs_own_code(self) -> bool:
        """True if code from outside psnode may change `memory` between a version's first and last update."""
        return self._own_code and self._device_copies is None

    def state(self) -> ShardState:
        """Return the state for a checkpoint: the model, the optimizer's memories, and y. Call this while no group is open."""
        average = {} if self._average is None else self._weights.state(self._average.vector)
        found = ShardState(self._weights.state(), self._parameters.state(), self._downlink.state(), average)
        if self._constrained:  # a constrained shard has nothing on a device
            return with_copies_of_the_rest(found, self._weights.vector)
        if self._device_copies is None:
            return found
        newest = self._device_copies.copies(
            [*self._parameters.vectors, *([self._downlink.home] if self._downlink.differs else [])]
        )
        return ShardState(*({name: newest(value) for name, value in tensors.items()} for tensors in found))

    def hand_over(self, version: int) -> None:
        """Return None, since the state is on this rank."""

    def memory(self) -> list[list[torch.Tensor]]:
        """Return, by group of the plan, the tensors of `state` that a later version changes.

        Other tensors of `state` do not change, unless the task has a constraint. The lists are empty for groups of other
        shards. All lists are empty if a device holds the newest values, since `state` then returns copies.
        """
        average, own = self._average, {} if self._device_copies is not None else self._part.groups
        return [
            [
                *self._parameters.memory(group.index),
                *([self._downlink.memory(group)] if self._downlink.differs else []),
                *([average.memory(group.index)] if average is not None else []),
            ]
            if (group := own.get(index)) is not None
            else []
            for index in range(len(self._part.whole.groups))
        ]

    def before_change(self, tell: Callable[[int], None]) -> None:
        """From now on, call `tell` with a group whenever the group is about to change.

        The call is made in a lane, and may delay it.
        """
        self._reduction.before_change = tell

    def norms(self) -> Tensors:
        """Return the norms with which later pushes are compared, for a checkpoint. Call this while no group is open."""
        return self._reduction.norms()

    def facts(self) -> dict[str, float]:
        """Return facts for a checkpoint's manifest. Call this while no group is open."""
        return {} if self._norm is None else self._norm.facts()

    def waiting(self) -> Tensors:
        """Return, for a checkpoint, the gradients that have already come and wait for the next round."""
        return pack(self._rounds.waiting)

    def take_up(self, found: Checkpoint | None) -> None:
        """Continue from the tensors of a checkpoint, if any. Raises CheckpointError if they do not fit or are damaged."""
        if found is None:
            return
        part = self._part
        self._weights.load(own_tensors(part, found.tensors(checkpoint.MODEL), memories=False))
        self._parameters.load(own_tensors(part, state_names.state_of(found, checkpoint.OPTIMIZER), memories=True))
        if self._average is not None and found.step:
            self._average.load(own_tensors(part, found.tensors(checkpoint.EMA), memories=False))
        if self._downlink.differs:
            self._downlink.load(own_tensors(part, state_names.state_of(found, checkpoint.REPLICA), memories=True))
        if self._device_copies is not None:
            self._device_copies.renew()
        if self._norm is not None:
            self._norm.take_up(found.facts)
        self._reduction.take_up(found)
        self._rounds.restore((_origin(frame), frame) for frame in unpack(found))

    def hand_out(self, lacking: Iterable[int]) -> None:
        """Do nothing, since no other rank has a part of these weights."""

    def outlier(self) -> str:
        """Return a line about a push that was applied although its norm is out of proportion; "" if there is no such push."""
        return self._reduction.outlier()

    @property
    def gradient_norm(self) -> float | None:
        """L2 norm of the last version's mean gradient before clipping; None without --clip-grad-norm.

        Valid while no group is open.
        """
        return None if self._norm is None else self._norm.norm

    def seconds(self) -> dict[str, float]:
        """Return the seconds spent on decoding, updating and sending since the last call, by the name of the work."""
        return self._watch.take()


def _origin(frame: Frame) -> Origin:
    return Origin(Slot(frame.group), frame.sender, frame.version)


def _norm_of(part: PlanPart, config: Config, link: FrameChannel) -> GlobalNorm | None:
    """Return the object that computes the global norm and clips gradients by it; None without --clip-grad-norm."""
    if config.clip_grad_norm is None:
        return None
    count, estimated = len(part.groups), config.clip_estimate == "previous"
    if part.is_whole and link.rank == MASTER:
        return GlobalNorm(config.clip_grad_norm, count, estimated=estimated)
    if part.is_whole:
        return ToldNorm(config.clip_grad_norm, count, link.inbox.post, estimated=estimated)
    return SharedNorm(config.clip_grad_norm, count, link.inbox.post, estimated=estimated)


def _require_whole(part: PlanPart, config: Config, constraint: Constraint | None) -> None:
    """Raise ConfigurationError if a constraint needs groups that the shard lacks, or the optimizer a whole tensor that is cut."""
    if constraint is not None and not part.is_whole:
        raise ConfigurationError("Task.constrain needs all weights in one place, and this run has them in several")
    if config.whole_tensors and part.pieces:
        raise ConfigurationError(f"--optimizer {config.optimizer} needs whole tensors, and {next(iter(part.pieces))} is cut")
