"""Verdicts on whole gradients: the pushes of a round whose norm is out of all proportion.

A push of a group is added immediately unless it is suspicious. A suspicious push waits until the pushes of all groups in the
round have come. Then the norm of the worker's whole gradient is known, and only this norm decides on the push. --norm-cap
selects the rule:

    auto      suspicious: a norm above IMPOSSIBLE and above FACTOR times the largest norm ever accepted; refused: a whole gradient
              whose norm is also above FACTOR times the latest norm of every other worker
    a number  suspicious: a norm above this number times the usual norm of the group, or any norm before a usual norm is known;
              refused: a whole gradient whose norm is above this number times the usual norm of whole gradients
              (psnode.exchange.shard.norm_cap)
    off       no push is suspicious

Above IMPOSSIBLE, squares leave the range of float32, and torch.nn.utils.clip_grad_norm_ turns a gradient into zeros.
The gradient of a job's only worker is always accepted.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import NamedTuple

import torch

from psnode.config.effects import AUTO
from psnode.exchange.shard.norm_cap import Norms, median, pack, unpack
from psnode.plans.part import PlanPart
from psnode.records.checkpoint import Checkpoint

FACTOR = AUTO
IMPOSSIBLE = 2.0**64
ALONE = 10  # after more rounds with gradients of only one worker, norms of other workers are out of date
OUTLYING = 10
_STEPS = 4  # number of a worker's steps whose norms are kept, since gradients of more groups may come

Wholes = dict[tuple[int, int], float]  # norms of whole gradients, by rank and step


class Beyond(NamedTuple):
    """Verdict that a whole gradient of this `norm` is not accepted, since the norm is above `bound`.

    `usual`: the reference norm, to which the gradient may be scaled down. If no reference is known, it is 0, and no part of
    the gradient counts. `group`: the group of the gradient's largest push.
    """

    norm: float
    bound: float
    usual: float
    group: int


class Closing(NamedTuple):
    """Group for which all pushes of a round have come, with the version and the learning rate of its update."""

    group: int
    version: int
    lr: float


class Judge:
    """Judge of pushes by the norm of the whole gradient: a worker's pushes in one step for all groups of `part`.

    Lanes call `suspects` and `hear`, only one lane at a time for a group. `cap`: AUTO, a number, or None for off.
    """

    def __init__(self, part: PlanPart, cap: float | None) -> None:
        self._part, self._cap = part, cap
        self._all = tuple(part.groups)
        self._number = cap is not None and cap != AUTO
        self._groups = {group: Norms() for group in part.groups} if self._number else {}
        self._whole = Norms()
        self._largest = 0.0  # the largest norm ever accepted
        self._latest: dict[int, float] = {}
        self._sole, self._streak = 0, 0  # the only rank with gradients in the last rounds, and the number of these rounds
        self._pushes: dict[int, Wholes] = {group: {} for group in part.groups}  # norms of pushes in the open round, by group
        self._squares: dict[int, dict[int, float]] = {}  # sums of squared norms by rank and step, over rounds
        self._lock = threading.Lock()
        self._heard = set[int]()
        self._parked: list[Closing] = []
        self.verdicts: dict[tuple[int, int], Beyond] = {}  # of the last judged round, by rank and step

    def suspects(self, group: int, rank: int, step: int, norm: float) -> bool:
        """Record that a push of `rank` has this norm. Return True if the push must wait for the verdict on its gradient."""
        self._pushes[group][rank, step] = norm
        if self._cap is None or not norm:
            return False
        if not self._number:
            return norm > max(IMPOSSIBLE, FACTOR * self._largest)
        usual = self._groups[group].usual
        return usual is None or norm > self._cap * usual

    def hear(self, closing: Closing, *, waits: bool, alone: bool) -> list[Closing]:
        """Record that all pushes of a group's round have come. Return the groups that can be closed now.

        `waits`: True if this group has suspicious pushes. `alone`: True if at most one worker takes part in the job.
        """
        with self._lock:
            self._heard.add(closing.group)
            self._parked.append(closing)
            if len(self._heard) == len(self._all):
                self._conclude(alone)
                self._heard.clear()
            elif waits:
                return []
            else:
                return [self._parked.pop()]
            ready, self._parked = self._parked, []
            return ready

    def _conclude(self, alone: bool) -> None:
        """Decide on all gradients of the round, and record their norms."""
        wholes = self._add_up()
        ranks = {rank for rank, _ in wholes}
        self._streak = self._streak + 1 if ranks == {self._sole} else 1
        self._sole = next(iter(ranks)) if len(ranks) == 1 else 0
        believed = len(ranks) == 1 and (alone or (self._number and self._streak > ALONE))
        self._latest |= {rank: norm for (rank, _), norm in sorted(wholes.items()) if norm}
        self.verdicts = {}
        if self._number:
            self._whole.note(wholes)
        for (rank, step), norm in wholes.items():
            if not believed and norm and (beyond := self._beyond(rank, step, norm)) is not None:
                self.verdicts[rank, step] = beyond
        for group, norms in self._groups.items():
            norms.note(self._pushes[group])
            norms.renew()
        self._whole.renew()
        self._largest = max([self._largest, *(norm for key, norm in wholes.items() if key not in self.verdicts)])
        self._pushes = {group: {} for group in self._all}

    def _add_up(self) -> Wholes:
        """Return the norms of all gradients that had a push in this round, by rank and step.

        Only pushes that have come so far count.
        """
        found = dict.fromkeys(sorted({key for pushes in self._pushes.values() for key in pushes}), 0.0)
        for rank, step in found:
            steps = self._squares.setdefault(rank, {})
            steps[step] = steps.get(step, 0.0) + sum(pushes.get((rank, step), 0.0) ** 2 for pushes in self._pushes.values())
            while len(steps) > _STEPS:
                steps.pop(min(steps))
            found[rank, step] = math.sqrt(steps.get(step, 0.0))
        return found

    def _beyond(self, rank: int, step: int, norm: float) -> Beyond | None:
        """Return the verdict on the gradient of `rank` in `step`, if it is not accepted. Otherwise return None."""
        if self._cap is None:
            return None
        if self._number:
            usual = self._whole.reference(rank) or 0.0
            bound = self._cap * usual or math.inf
        else:
            others = [latest for other, latest in self._latest.items() if other != rank]
            usual, bound = 0.0, max(IMPOSSIBLE, FACTOR * max([self._largest, *others]))
        largest = max(self._pushes, key=lambda group: self._pushes[group].get((rank, step), 0.0))
        return Beyond(norm, bound, usual, largest) if norm > bound else None

    def outlier(self) -> str:
        """Return a line about a rank's latest gradient if it was accepted although its norm is large; otherwise "".

        A norm is large if it is over 10 times the median of the other ranks' norms.
        """
        refused = {rank for rank, _ in self.verdicts}
        for rank, norm in sorted(self._latest.items(), key=lambda item: -item[1]):
            others = median([other for who, other in self._latest.items() if who != rank])
            if rank not in refused and others is not None and norm > OUTLYING * others:
                return f"the latest gradient of rank {rank} had the norm {norm:.3g}, those of the others about {others:.3g}"
        return ""

    def state(self) -> Mapping[str, torch.Tensor]:
        """Return the norms with which later gradients are compared, for a checkpoint."""
        return pack(self._groups, self._whole, self._largest, self._part) if self._cap is not None else {}

    def take_up(self, found: Checkpoint | None) -> None:
        """Load the norms of a checkpoint, with which later gradients are compared."""
        if self._cap is None:
            return
        groups, whole, self._largest = unpack(found, self._part)
        if self._number:
            self._groups, self._whole = {group: Norms(kept) for group, kept in groups.items()}, Norms(whole)
