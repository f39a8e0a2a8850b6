"""The open round of every group: gradients added to it, gradients that wait for the next, gradients that come too late."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from psnode.exchange.shard.consistency import AdditionOrder, Rule
from psnode.protocol.wire import Frame


class Rounds:
    """Applies a Rule to each of `groups`, by number.

    `add(frame)` queues an addition; `close(group)` the group's update, after its additions.

    Every gradient (worker, step, group) is added at most once: the version that the next gradient of a worker must be
    computed on rises with every one that is taken.

    The awaited workers are kept up to date with every frame, so that an offer costs the same among any number of them. They are
    in the order in which their bases rose: those that a bound of staleness waits for come first, and the rule finds them at once.
    """

    def __init__(
        self, groups: Iterable[int], rule: Rule, *, by_rank: bool, add: Callable[[Frame], None], close: Callable[[int], None]
    ) -> None:
        self._rule, self._by_rank, self._add, self._close = rule, by_rank, add, close
        self._next: dict[int, dict[int, int]] = {group: {} for group in groups}  # rank -> the least base of its next gradient
        self._held: dict[int, list[Frame]] = {group: [] for group in self._next}
        self._orders: dict[int, AdditionOrder[Frame]] = {}
        self._awaited: dict[int, dict[int, int]] = {group: {} for group in self._next}  # those that the open round waits for
        self._ranks: set[int] = set()  # who takes part
        self._open: set[int] = set()
        self._excused: set[int] = set()
        self._version = 0

    def admit(self, ranks: Iterable[int], version: int) -> None:
        """Wait for `ranks` from the round of `version` on, which is opened next."""
        for rank in ranks:
            self._ranks.add(rank)
            for group, bases in self._next.items():
                bases[rank] = version
                if group in self._open and rank not in self._orders[group].arrived and rank not in self._excused:
                    self._awaited[group][rank] = version

    def open(self, version: int) -> None:
        """Begin the round of `version`, with the gradients that have waited for it."""
        self._version = version
        self._excused.clear()
        ranks = sorted(self._ranks)
        self._orders = {group: AdditionOrder[Frame](ranks, by_rank=self._by_rank) for group in self._next}
        self._awaited = {group: dict(bases) for group, bases in self._next.items()}
        self._open = set(self._next)
        for group, held in self._held.items():
            self._held[group] = []
            for frame in held:  # all of them, before the rule is asked: waiting frames must not pile up
                self._enter(frame)
            if held:
                self._judge(group)

    def offer(self, frame: Frame) -> bool:
        """Take a gradient frame; False if it comes too late or twice, or from a worker that is not awaited."""
        if not self._is_due(frame) or not self._rule.accepts(frame.version, self._version):
            return False
        if self._is_late(frame) and not self._rule.patient:
            return False
        self._raise_base(frame.group, frame.sender, frame.step)
        self._enter(frame)
        self._judge(frame.group)
        return True

    def _is_due(self, frame: Frame) -> bool:
        """True if it is the gradient of a group, of a worker that is awaited, and not of a step that has come."""
        if frame.group not in self._next:
            return False
        bases = self._next[frame.group]
        known = frame.sender in bases and frame.step == frame.version + 1
        return known and frame.version >= bases[frame.sender]

    def keep(self, frame: Frame) -> bool:
        """Take a gradient that comes after the last round, for a round that may follow; False if the rule drops late ones."""
        if not self._rule.patient or not self._is_due(frame):
            return False
        self._raise_base(frame.group, frame.sender, frame.step)
        self._held[frame.group].append(frame)
        return True

    def restore(self, frames: Iterable[Frame]) -> None:
        """These have waited where a run was stopped that goes on now: the next round takes them."""
        for frame in frames:
            if frame.group in self._held:
                self._held[frame.group].append(frame)

    @property
    def waiting(self) -> list[Frame]:
        """The gradients that have come and wait for the next round."""
        return [frame for held in self._held.values() for frame in held]

    def excuse(self, rank: int, step: int) -> None:
        """Nothing more of `step` comes from `rank`: groups that have come count, and the round does not wait for it."""
        for group, bases in self._next.items():
            if bases.get(rank, step) < step:
                self._raise_base(group, rank, step)
        if step == self._version + 1:
            self._excused.add(rank)
            self._pass_over(rank)

    def withdraw(self, rank: int) -> dict[int, int]:
        """Wait for `rank` no more; gradients that it has sent count. By group, the last of its steps that was taken."""
        self._ranks.discard(rank)
        taken = {group: bases.pop(rank, 0) for group, bases in self._next.items()}
        self._pass_over(rank)
        return taken

    @property
    def alone(self) -> bool:
        """True if one worker at most takes part."""
        return len(self._ranks) <= 1

    @property
    def untouched(self) -> bool:
        """True if all groups are open and no gradient of any has come."""
        return len(self._open) == len(self._next) and not any(order.arrived for order in self._orders.values())

    def force(self) -> None:
        """Close all open groups with the gradients received so far, even if there are none."""
        for group in sorted(self._open):
            self._finish(group)

    @property
    def idle(self) -> frozenset[int]:
        """The workers who have nothing to send before the version that follows the open round's."""
        return frozenset(rank for rank in self._ranks if all(bases[rank] > self._version for bases in self._next.values()))

    @property
    def missing(self) -> frozenset[int]:
        """The workers whose gradients some open group still awaits."""
        return frozenset(rank for awaited in self._awaited.values() for rank in awaited)

    def _raise_base(self, group: int, rank: int, base: int) -> None:
        self._next[group].pop(rank)
        self._next[group][rank] = base
        if rank in self._awaited[group]:
            self._awaited[group][rank] = base

    def _is_late(self, frame: Frame) -> bool:
        return frame.group not in self._open or frame.sender in self._orders[frame.group].arrived

    def _enter(self, frame: Frame) -> None:
        if self._is_late(frame):
            self._held[frame.group].append(frame)
        else:
            self._awaited[frame.group].pop(frame.sender, None)
            self._queue(self._orders[frame.group].offer(frame.sender, frame))

    def _pass_over(self, rank: int) -> None:
        for group in sorted(self._open):
            self._awaited[group].pop(rank, None)
            self._queue(self._orders[group].excuse(rank))
            self._judge(group)

    def _judge(self, group: int) -> None:
        """Close the group if the rule says so, or if it got nothing and everybody who is left has excused itself."""
        if group in self._open:
            arrived, awaited = len(self._orders[group].arrived), self._awaited[group]
            nothing_comes = not awaited and not arrived and bool(self._excused)
            if nothing_comes or self._rule.closes(arrived, awaited, self._version):
                self._finish(group)

    def _finish(self, group: int) -> None:
        self._open.discard(group)
        self._awaited[group].clear()
        self._queue(self._orders[group].rest())
        self._close(group)

    def _queue(self, frames: list[Frame]) -> None:
        for frame in frames:
            self._add(frame)
