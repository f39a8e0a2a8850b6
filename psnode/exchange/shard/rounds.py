"""Open rounds of all slots. A gradient is added to an open round, waits for the next round, or comes too late."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from psnode.exchange.shard.consistency import AdditionOrder, Rule

T = TypeVar("T")


class Slot(NamedTuple):
    """Unit that a round closes as a whole: a group, in one phase of its exchange. Today there is one phase."""

    group: int
    phase: int = 0


class Origin(NamedTuple):
    """Origin of a gradient: its slot, the rank that sent it, and the version of the weights on which it was computed."""

    slot: Slot
    rank: int
    version: int


class Rounds(Generic[T]):
    """Application of a Rule to each of `slots`. Gradients may be of any type, since only their origins are used.

    `add(gradient)` queues an addition; `close(slot)` queues the slot's update, after its additions.

    Every gradient (rank, version, slot) is added at most once. Each gradient that is taken raises the worker's base: the least
    version on which the worker's next gradient may be computed.

    The record of awaited workers is updated with every gradient, so that the cost of an offer does not depend on the number of
    workers. It lists workers in the order in which their bases last rose. So the workers for which a bound on staleness waits
    come first, and the rule finds them immediately.
    """

    def __init__(
        self, slots: Iterable[Slot], rule: Rule, *, by_rank: bool, add: Callable[[T], None], close: Callable[[Slot], None]
    ) -> None:
        self._rule, self._by_rank, self._add, self._close = rule, by_rank, add, close
        self._next: dict[Slot, dict[int, int]] = {slot: {} for slot in slots}  # rank -> its base
        self._held: dict[Slot, list[tuple[Origin, T]]] = {slot: [] for slot in self._next}
        self._orders: dict[Slot, AdditionOrder[T]] = {}
        self._awaited: dict[Slot, dict[int, int]] = {slot: {} for slot in self._next}  # bases of awaited ranks
        self._ranks: set[int] = set()  # the ranks that take part
        self._open: set[Slot] = set()
        self._excused: set[int] = set()
        self._version = 0

    def admit(self, ranks: Iterable[int], version: int) -> None:
        """From now on, wait also for gradients of `ranks` that are computed on `version` or later."""
        for rank in ranks:
            self._ranks.add(rank)
            for slot, bases in self._next.items():
                bases[rank] = version
                if slot in self._open and rank not in self._orders[slot].arrived and rank not in self._excused:
                    self._awaited[slot][rank] = version

    def open(self, version: int) -> None:
        """Open the round of `version`, and add the gradients that have waited for this round."""
        self._version = version
        self._excused.clear()
        ranks = sorted(self._ranks)
        self._orders = {slot: AdditionOrder[T](ranks, by_rank=self._by_rank) for slot in self._next}
        self._awaited = {slot: dict(bases) for slot, bases in self._next.items()}
        self._open = set(self._next)
        for slot, held in self._held.items():
            self._held[slot] = []
            for origin, gradient in held:  # all of them before the rule is evaluated, so that waiting gradients do not pile up
                self._enter(origin, gradient)
            if held:
                self._judge(slot)

    def offer(self, origin: Origin, gradient: T) -> bool:
        """Take a gradient. Return False if it comes too late, has come before, or is from a worker that is not awaited."""
        slot, rank, version = origin  # called for every frame: each record is looked up once
        bases = self._next.get(slot)
        base = None if bases is None else bases.get(rank)
        if bases is None or base is None or version < base or not self._rule.accepts(version, self._version):
            return False
        order = self._orders[slot] if slot in self._open else None
        in_time = order is not None and rank not in order.arrived
        if not in_time and not self._rule.patient:
            return False
        del bases[rank]
        bases[rank] = version + 1
        awaited = self._awaited[slot]
        if order is not None and in_time:
            awaited.pop(rank, None)
            self._queue(order.offer(rank, gradient))
        else:
            if rank in awaited:
                awaited[rank] = version + 1
            self._held[slot].append((origin, gradient))
        if order is not None:
            self._judge(slot)
        return True

    def _is_due(self, origin: Origin) -> bool:
        """Return True if the slot exists, the worker takes part, and the gradient's version is not below the worker's base."""
        bases = self._next.get(origin.slot, {})
        return origin.rank in bases and origin.version >= bases[origin.rank]

    def keep(self, origin: Origin, gradient: T) -> bool:
        """Keep a gradient that comes after the last round, for a resumed run. Return False if the rule drops late gradients."""
        if not self._rule.patient or not self._is_due(origin):
            return False
        self._raise_base(origin.slot, origin.rank, origin.version + 1)
        self._held[origin.slot].append((origin, gradient))
        return True

    def restore(self, gradients: Iterable[tuple[Origin, T]]) -> None:
        """Queue, for the next round, the gradients that were kept when an earlier start of this run was stopped."""
        for origin, gradient in gradients:
            if origin.slot in self._held:
                self._held[origin.slot].append((origin, gradient))

    @property
    def waiting(self) -> list[T]:
        """Gradients that have already come and wait for the next round."""
        return [gradient for held in self._held.values() for _, gradient in held]

    def excuse(self, rank: int, version: int) -> None:
        """Expect no more gradients of `rank` computed on `version`, so that the round does not wait for them.

        Gradients of `rank` that have already come count.
        """
        for slot, bases in self._next.items():
            if bases.get(rank, version + 1) <= version:
                self._raise_base(slot, rank, version + 1)
        if version == self._version:
            self._excused.add(rank)
            self._pass_over(rank)

    def withdraw(self, rank: int) -> dict[Slot, int]:
        """Stop waiting for `rank`. Gradients that it has sent count.

        Returns, by slot, the least version on which the next gradient of `rank` could have been computed.
        """
        self._ranks.discard(rank)
        bases = {slot: bases.pop(rank, 0) for slot, bases in self._next.items()}
        self._pass_over(rank)
        return bases

    @property
    def alone(self) -> bool:
        """True if at most one worker takes part."""
        return len(self._ranks) <= 1

    @property
    def all_open(self) -> bool:
        """True if a round is open and no slot is closed yet."""
        return len(self._open) == len(self._next)

    @property
    def untouched(self) -> bool:
        """True if all slots are open and no gradient has come for any of them."""
        return self.all_open and not any(order.arrived for order in self._orders.values())

    def force(self) -> None:
        """Close all open slots with the gradients received so far, even if a slot has none."""
        for slot in sorted(self._open):
            self._finish(slot)

    @property
    def idle(self) -> frozenset[int]:
        """Workers that send nothing more before the open round is complete and the next version is published."""
        return frozenset(rank for rank in self._ranks if all(bases[rank] > self._version for bases in self._next.values()))

    @property
    def missing(self) -> frozenset[int]:
        """Workers whose gradients some open slot still awaits."""
        return frozenset(rank for awaited in self._awaited.values() for rank in awaited)

    def _raise_base(self, slot: Slot, rank: int, base: int) -> None:
        self._next[slot].pop(rank)
        self._next[slot][rank] = base
        if rank in self._awaited[slot]:
            self._awaited[slot][rank] = base

    def _is_late(self, origin: Origin) -> bool:
        return origin.slot not in self._open or origin.rank in self._orders[origin.slot].arrived

    def _enter(self, origin: Origin, gradient: T) -> None:
        if self._is_late(origin):
            self._held[origin.slot].append((origin, gradient))
        else:
            self._awaited[origin.slot].pop(origin.rank, None)
            self._queue(self._orders[origin.slot].offer(origin.rank, gradient))

    def _pass_over(self, rank: int) -> None:
        for slot in sorted(self._open):
            self._awaited[slot].pop(rank, None)
            self._queue(self._orders[slot].excuse(rank))
            self._judge(slot)

    def _judge(self, slot: Slot) -> None:
        """Close the slot if the rule closes it, or if it has no gradient and can get none because workers are excused."""
        if slot in self._open:
            arrived, awaited = len(self._orders[slot].arrived), self._awaited[slot]
            nothing_comes = not awaited and not arrived and bool(self._excused)
            if nothing_comes or self._rule.closes(arrived, awaited, self._version):
                self._finish(slot)

    def _finish(self, slot: Slot) -> None:
        self._open.discard(slot)
        self._awaited[slot].clear()
        self._queue(self._orders[slot].rest())
        self._close(slot)

    def _queue(self, gradients: list[T]) -> None:
        for gradient in gradients:
            self._add(gradient)
