"""Verdicts on whole gradients: which pushes of a round are out of all proportion.

A group's push is added as it comes unless it is suspicious. A suspicious one waits until all groups of the round have come,
when the norm of its worker's whole gradient is known, and is judged by that alone.

    auto      suspicious, and refused: a norm beyond the largest of IMPOSSIBLE, FACTOR times the largest norm ever accepted,
              FACTOR times another worker's norm
    a number  suspicious: a norm of more than that many times the usual one of the group; refused: a whole gradient of more
              than that many times the usual one of whole gradients (psnode.exchange.shard.norm_cap)
    off       nothing

IMPOSSIBLE is where squares leave the range of float32: torch.nn.utils.clip_grad_norm_ makes zeros of a gradient beyond it. A
worker that has no other beside it is always believed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import NamedTuple

import torch

from psnode.config.effects import AUTO
from psnode.exchange.shard.norm_cap import Norms, median, pack, unpack
from psnode.plan.part import PlanPart
from psnode.records.checkpoint import Checkpoint

FACTOR = AUTO
IMPOSSIBLE = 2.0**64
ALONE = 10  # rounds of one worker in a row: the others have stopped, and their earlier pushes tell nothing of now
OUTLYING = 10
_STEPS = 4  # of a worker, whose groups may still come

Wholes = dict[tuple[int, int], float]  # norms of whole gradients, by rank and step


class Beyond(NamedTuple):
    """A whole gradient of this `norm` is not accepted, as it is above `bound`. `usual`: the norm of others like it; 0: it can be
    none, and no part of it counts. `group`: of its largest push.
    """

    norm: float
    bound: float
    usual: float
    group: int


class Closing(NamedTuple):
    """A group whose additions are done, with the facts that its update needs."""

    group: int
    version: int
    lr: float


class Judge:
    """Suspicion and verdicts over the pushes of the groups of `part`, which are a whole gradient here. Lanes call `suspects` and
    `hear`, for a group one at a time.

    `cap`: AUTO, a number, or None for off.
    """

    def __init__(self, part: PlanPart, cap: float | None) -> None:
        self._part, self._cap = part, cap
        self._all = tuple(part.groups)
        self._number = cap is not None and cap != AUTO
        self._groups = {group: Norms() for group in part.groups} if self._number else {}
        self._whole = Norms()
        self._largest = 0.0  # norm ever accepted
        self._latest: dict[int, float] = {}
        self._sole, self._streak = 0, 0  # the rank that was the only one of the last rounds, and the number of these
        self._pushes: dict[int, Wholes] = {group: {} for group in part.groups}  # of the open round
        self._squares: dict[int, dict[int, float]] = {}  # by rank and step, over rounds
        self._lock = threading.Lock()
        self._heard = set[int]()
        self._parked: list[Closing] = []
        self.verdicts: dict[tuple[int, int], Beyond] = {}  # of the last round that was judged, by rank and step

    def suspects(self, group: int, rank: int, step: int, norm: float) -> bool:
        """`rank` has pushed something of this norm; True if it has to wait for the verdict."""
        self._pushes[group][rank, step] = norm
        if self._cap is None or not norm:
            return False
        if not self._number:
            return norm > max(IMPOSSIBLE, FACTOR * self._largest)
        usual = self._groups[group].usual
        return usual is None or norm > self._cap * usual

    def hear(self, closing: Closing, *, waits: bool, alone: bool) -> list[Closing]:
        """All pushes of a group's round have come: those that can be closed now. `waits`: it has suspects.

        `alone`: one worker at most takes part in the job.
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
        """Judge the gradients of the round, and note their norms."""
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
        """Norms of the gradients of which something came in this round, as far as they have come."""
        found = dict.fromkeys(sorted({key for pushes in self._pushes.values() for key in pushes}), 0.0)
        for rank, step in found:
            steps = self._squares.setdefault(rank, {})
            steps[step] = steps.get(step, 0.0) + sum(pushes.get((rank, step), 0.0) ** 2 for pushes in self._pushes.values())
            while len(steps) > _STEPS:
                steps.pop(min(steps))
            found[rank, step] = math.sqrt(steps.get(step, 0.0))
        return found

    def _beyond(self, rank: int, step: int, norm: float) -> Beyond | None:
        """The verdict, if the gradient is not accepted."""
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
        """Tell of the largest of the latest gradients if it was accepted and is over 10 times the others' median."""
        refused = {rank for rank, _ in self.verdicts}
        for rank, norm in sorted(self._latest.items(), key=lambda item: -item[1]):
            others = median([other for who, other in self._latest.items() if who != rank])
            if rank not in refused and others is not None and norm > OUTLYING * others:
                return f"the latest gradient of rank {rank} had the norm {norm:.3g}, those of the others about {others:.3g}"
        return ""

    def state(self) -> Mapping[str, torch.Tensor]:
        """The norms that later gradients are compared with, for a checkpoint."""
        return pack(self._groups, self._whole, self._largest, self._part) if self._cap is not None else {}

    def take_up(self, found: Checkpoint | None) -> None:
        """Compare with the norms that a checkpoint holds."""
        if self._cap is None:
            return
        groups, whole, self._largest = unpack(found, self._part)
        if self._number:
            self._groups, self._whole = {group: Norms(kept) for group, kept in groups.items()}, Norms(whole)
