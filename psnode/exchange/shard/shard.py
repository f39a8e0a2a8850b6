"""The groups that one rank is the root of: from an offered gradient to the weights on their way down.

offer -> Rounds: is it due, and whose turn is it?
      -> Reduction: decoded, checked, and added to the group's sum
      -> Rule: the round closes, and the optimizer moves x
      -> Downlink: y moves towards x, and the change leaves for every recipient
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
from psnode.errors import ConfigurationError
from psnode.exchange.routes import Route
from psnode.exchange.shard.aggregator import get_aggregator
from psnode.exchange.shard.arithmetic import Arithmetic, HostArithmetic
from psnode.exchange.shard.consistency import Rule
from psnode.exchange.shard.downlink import Downlink
from psnode.exchange.shard.executor import GroupExecutor, lane_count
from psnode.exchange.shard.global_norm_clipping import GlobalNorm
from psnode.exchange.shard.on_device import place
from psnode.exchange.shard.reduction import Reduction
from psnode.exchange.shard.rounds import Rounds
from psnode.exchange.shard.state import ShardState, own_tensors, with_copies_of_the_rest
from psnode.exchange.shard.unapplied import pack, unpack
from psnode.exchange.stopwatch import Stopwatch
from psnode.exchange.update.device_copies import DeviceCopies
from psnode.exchange.update.moving_average import MovingAverage
from psnode.exchange.update.parameters import Parameters
from psnode.exchange.update.weight_vector import Constraint, Weights
from psnode.exchange.update.whole_updates import MakeOptimizer
from psnode.plan.coding import Coding
from psnode.plan.part import PlanPart, part_of
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Frame
from psnode.records import checkpoint, state_names
from psnode.records.checkpoint import Checkpoint
from psnode.records.timeline import Tracer
from psnode.tasks.parameter_groups import ParameterGroup

Tensors = dict[str, torch.Tensor]


class Shard:
    """Open rounds of some groups of a plan, by number, their reduction, x with the optimizer, and y on its way down by `routes`.

    One thread calls it. Arithmetic is done in lanes, which post GroupClosed, Refused and NotApplied to the inbox of `link`.
    `weights`: x of these groups, one after another. `routes`: of all groups of the plan. `rate`: the learning rate of gradients
    computed on a version. `device`: where sums, x, the optimizer's memories and y are computed with, as far as they can be; this
    class gives away copies of their newest values.
    """

    def __init__(
        self,
        coding: Coding,
        groups: Iterable[int],
        config: Config,
        weights: Weights,
        link: FrameChannel,
        rule: Rule,
        rate: Callable[[int], float],
        routes: Sequence[Route],
        tracer: Tracer,
        *,
        constraint: Constraint | None = None,
        parameter_groups: Sequence[ParameterGroup] = (),
        own_optimizer: MakeOptimizer | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._part = part = part_of(coding.plan, groups)
        _require_whole(part, config, constraint)
        self._rate = rate
        self._version = 0
        self._watch = Stopwatch()
        self._weights = weights
        self._parameters = Parameters(
            weights.vector, part.own, config, coding.scheme.momentum, coding.gathering, parameter_groups, own_optimizer
        )
        heirs = {group: routes[group].heirs(link.rank) for group in part.groups}
        lead = coding.scheme.lead(config.downlink_lead)
        self._downlink = Downlink(coding.down, weights.vector.numpy(), part, link, heirs, seed=config.seed, lead=lead)
        self._lanes = GroupExecutor(link.inbox, lane_count(len(part.groups)), part.groups)
        self._average = MovingAverage(weights.vector, part.own, config.ema_decay) if config.ema_decay is not None else None
        self._norm = None
        if config.clip_grad_norm is not None:
            self._norm = GlobalNorm(config.clip_grad_norm, len(part.groups), estimated=config.clip_estimate == "previous")
        self._constrained = constraint is not None
        codecs, aggregator = coding.up, get_aggregator(coding.scheme.aggregator)
        own_codec = any(is_from_outside(codec) for codec in (*codecs, *(self._downlink.codecs or ())))
        self._own_code = self._constrained or own_optimizer is not None or own_codec
        arithmetic: Arithmetic = HostArithmetic(part.own, codecs, aggregator, self._parameters)
        self._device_copies: DeviceCopies | None = None
        self.on_host: list[str] = []  # lines about work that the host does although there is a device
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
        self._rounds = Rounds(part.groups, rule, by_rank=by_rank, add=self._add, close=self._close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Finish the work that is queued and end the lanes."""
        self._lanes.close()

    # rounds

    def admit(self, ranks: Iterable[int], version: int) -> None:
        """Wait for gradients of `ranks` from the round of `version` on, which is opened next."""
        self._rounds.admit(ranks, version)

    def open(self, version: int) -> None:
        """Open the round of `version` for its groups. All of them are closed, or untouched."""
        self._version = version
        self._rounds.open(version)

    def offer(self, frame: Frame) -> bool:
        """Take a gradient frame; False if it comes too late or twice, or from a rank that is not awaited."""
        return self._rounds.offer(frame)

    def keep(self, frame: Frame) -> bool:
        """Take a gradient that comes after the last round, for a run that continues later; False if the rule drops it."""
        return self._rounds.keep(frame)

    def excuse(self, rank: int, step: int) -> None:
        """Nothing more of `step` comes from `rank`: the open round does not wait for it."""
        self._rounds.excuse(rank, step)

    def withdraw(self, rank: int) -> dict[int, int]:
        """Wait for `rank` no more; its gradients count. Returns by group the last of its steps that was taken."""
        return self._rounds.withdraw(rank)

    def force(self) -> None:
        """Close all open groups with the gradients received so far, even if there are none."""
        self._rounds.force()

    @property
    def untouched(self) -> bool:
        """True if all groups are open and no gradient of any has come."""
        return self._rounds.untouched

    @property
    def idle(self) -> frozenset[int]:
        """The ranks that have nothing to send before the version that follows the open round's."""
        return self._rounds.idle

    @property
    def missing(self) -> frozenset[int]:
        """The ranks whose gradients some open group awaits."""
        return self._rounds.missing

    def _add(self, frame: Frame) -> None:
        """Queue an addition. A step has one rate: where memories are in units of weights, a stale push is rescaled to it."""
        rescaled = self._reduction.rescales and frame.version != self._version
        rate = self._rate(self._version)
        self._reduction.add(frame, self._rate(frame.version) / rate if rescaled and rate else 1.0)

    def _close(self, group: int) -> None:
        self._reduction.close(group, self._version + 1, self._rate(self._version), alone=self._rounds.alone)

    # weights

    def send_to(self, ranks: Iterable[int]) -> None:
        """Send new versions to `ranks` alone, each group to those of them that its route names. While no group is open."""
        self._downlink.send_to(ranks)

    def send_whole(self, ranks: Sequence[int], version: int) -> int:
        """Send y, which is that of `version`, to `ranks`; returns the bytes of all frames."""
        return sum(self._downlink.send_dense(group, version, ranks) for group in self._part.own.groups)

    @property
    def replica(self) -> Floats:
        """y, these weights as every recipient holds them: flat, in the order of the plan."""
        if self._device_copies is None:
            return self._downlink.replica
        found: Floats = self._device_copies.copy(self._downlink.home).numpy()
        return found

    def digest(self) -> str:
        """xxh3_128 of the bytes of all weights, as Weights.digest says."""
        if self._device_copies is None:
            return self._weights.digest()
        return self._weights.digest(self._device_copies.copies([self._weights.vector]))

    # checkpoints and records

    @property
    def runs_own_code(self) -> bool:
        """True if code from outside psnode runs between the first update of a version and the last, and `memory` changes."""
        return self._own_code and self._device_copies is None

    def state(self) -> ShardState:
        """Model, optimizer and y, for a checkpoint. While no group is open."""
        average = {} if self._average is None else self._weights.state(self._average.vector)
        found = ShardState(self._weights.state(), self._parameters.state(), self._downlink.state(), average)
        if self._constrained:  # so that nothing is on a device
            return with_copies_of_the_rest(found, self._weights.vector)
        if self._device_copies is None:
            return found
        newest = self._device_copies.copies(
            [*self._parameters.vectors, *([self._downlink.home] if self._downlink.differs else [])]
        )
        return ShardState(*({name: newest(value) for name, value in tensors.items()} for tensors in found))

    def memory(self) -> list[list[torch.Tensor]]:
        """The tensors of `state` that a later version changes, by group of the plan; without a constraint of the task, no others
        change.

        Nothing of groups that are not the shard's, or where a device has the newest values, and `state` is copies.
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
        """Call `tell` with every group that is about to change, in a lane, which it may delay."""
        self._reduction.before_change = tell

    def norms(self) -> Tensors:
        """The norms that later pushes are compared with, for a checkpoint. While no group is open."""
        return self._reduction.norms()

    def facts(self) -> dict[str, float]:
        """Facts for a checkpoint's manifest. While no group is open."""
        return {} if self._norm is None else self._norm.facts()

    def waiting(self) -> Tensors:
        """The gradients that have come and wait for the next round, for a checkpoint."""
        return pack(self._rounds.waiting)

    def take_up(self, found: Checkpoint | None) -> None:
        """Go on from a checkpoint's tensors, if there is one. CheckpointError if they do not fit or are damaged."""
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
        self._rounds.restore(unpack(found))

    def outlier(self) -> str:
        """Tell of a push that is out of all proportion and in the weights all the same; else nothing."""
        return self._reduction.outlier()

    @property
    def gradient_norm(self) -> float | None:
        """L2 norm of the last version's mean gradient before clipping; None without --clip-grad-norm. While no group is open."""
        return None if self._norm is None else self._norm.norm

    def seconds(self) -> dict[str, float]:
        """Seconds of decoding, updating and sending since the last call, by name."""
        return self._watch.take()


def _require_whole(part: PlanPart, config: Config, constraint: Constraint | None) -> None:
    """ConfigurationError for settings that need all groups in one shard, where it has some."""
    wants = {"Task.constrain": constraint is not None, "--clip-grad-norm": config.clip_grad_norm is not None}
    for setting in (name for name, wanted in wants.items() if wanted and not part.is_whole):
        raise ConfigurationError(f"{setting} needs all weights in one place, and this run has them in several")
    if config.whole_tensors and part.pieces:
        raise ConfigurationError(f"--optimizer {config.optimizer} needs whole tensors, and {next(iter(part.pieces))} is cut")
