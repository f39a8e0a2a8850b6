"""Limit on the norm of a push: a multiple of the workers' earlier pushes of its group, and of the others' pushes.

A worker's batch may honestly have a gradient of a hundred times the median: late in training nearly all batches have almost no
loss, and one hard example has plenty (docs/decisions/norm-cap.md has the figures). So a push is within bounds if its norm is at
most `cap` times the largest of

    m            the median of the last 25 norms of each worker
    u / 2        u: the median over the workers of the largest of the last 100 norms of each
    w            the median over the other workers of their latest norms, be they refused: a rise that all see is none's fault

Medians are the lower ones, so that one of two workers, or of four, moves none of them by itself. Norms of zero say nothing and
are passed over.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import torch

from psnode.errors import CheckpointError
from psnode.plan.groups import Plan
from psnode.records import layout
from psnode.records.checkpoint import NORMS, Checkpoint

RECENT = 25
WINDOW = 100
SHARE = 0.5
ALONE = 10  # pushes of one worker in a row: the others have stopped, and their earlier pushes tell nothing of now
OUTLYING = 10


class Norms:
    """The norms of the pushes of one group. Its state is `kept`, by rank, oldest first, as in a checkpoint."""

    def __init__(self, cap: float | None, kept: Mapping[int, Sequence[float]] | None = None) -> None:
        self._cap = cap
        self._kept = {rank: deque(norms, WINDOW) for rank, norms in sorted((kept or {}).items())}
        self._offered = {rank: norms[-1] for rank, norms in self._kept.items() if norms}  # the latest, accepted or not
        self._last, self._streak = 0, 0  # the rank that pushed last, and how often in a row
        self._refused: dict[int, float] = {}  # the latest, if it was not accepted
        self._silent = dict.fromkeys(self._kept, 0)  # how many norms of others were accepted since
        self._usual = self._reference()

    @property
    def kept(self) -> dict[int, tuple[float, ...]]:
        """The norms that were accepted."""
        return {rank: tuple(norms) for rank, norms in self._kept.items()}

    @property
    def usual(self) -> float | None:
        """The larger of m and u / 2; None before there is any norm."""
        return self._usual

    def passes(self, norm: float) -> bool:
        """True if a push is within bounds whatever the others push."""
        return self._cap is None or norm == 0 or (self._usual is not None and norm <= self._cap * self._usual)

    def bound(self, rank: int) -> float | None:
        """The largest norm that `rank` may push, given the latest pushes of the others; None: any, as nothing is known."""
        if self._cap is None:
            return None
        others = [norm for other, norm in self._offered.items() if other != rank]
        known = [value for value in (self._usual, median([norm for norm in others if norm])) if value is not None]
        alone = not others or (self._last == rank and self._streak > ALONE)
        if alone and rank in self._refused:
            known.append(self._refused[rank])
        if alone and rank in self._kept:
            known.append(SHARE * max(self._kept[rank]))
        return self._cap * max(known) if known else None

    def offer(self, rank: int, norm: float) -> None:
        """`rank` has pushed something of this norm."""
        self._offered[rank] = norm
        self._last, self._streak = rank, self._streak + 1 if rank == self._last else 1

    def refuse(self, rank: int, norm: float) -> None:
        """The push of `rank` was out of bounds. If it has nobody beside it, a second one like this is believed."""
        self._refused[rank] = norm

    def outlier(self) -> str:
        """Tell of the largest of the latest pushes if it was accepted and is over 10 times the others' median; else nothing."""
        for rank, norm in sorted(self._offered.items(), key=lambda item: -item[1]):
            others = median([other for who, other in self._offered.items() if who != rank and other])
            if rank not in self._refused and others is not None and norm > OUTLYING * others:
                return f"the latest gradient of rank {rank} had the norm {norm:.3g}, those of the others about {others:.3g}"
        return ""

    def accept(self, accepted: Iterable[tuple[int, float]]) -> None:
        """A round has closed with pushes of these ranks and norms."""
        for rank, norm in accepted:
            self._refused.pop(rank, None)
            if not norm:
                continue
            self._kept.setdefault(rank, deque(maxlen=WINDOW)).append(norm)
            self._silent = {other: count + 1 for other, count in self._silent.items()} | {rank: 0}
        for rank in [rank for rank, count in self._silent.items() if count > WINDOW * len(self._kept)]:  # it is gone
            for known in (self._kept, self._silent, self._offered):
                known.pop(rank, None)
        self._usual = self._reference()

    def _reference(self) -> float | None:
        recent = median([norm for norms in self._kept.values() for norm in islice(reversed(norms), RECENT)])
        largest = median([max(norms) for norms in self._kept.values()])
        return None if recent is None or largest is None else max(recent, SHARE * largest)


def median(values: Sequence[float]) -> float | None:
    """The lower median; None of nothing."""
    return sorted(values)[(len(values) - 1) // 2] if values else None


def pack(norms: Sequence[Norms], plan: Plan) -> dict[str, torch.Tensor]:
    """The norms kept of each group of `plan`, named RANK/RANGE (psnode.records.layout), for a checkpoint."""
    return {
        f"{rank}/{where}": torch.tensor(kept, dtype=torch.float64)
        for where, each in zip(layout.ranges(plan, plan.groups), norms, strict=True)
        for rank, kept in each.kept.items()
    }


def unpack(found: Checkpoint | None, plan: Plan) -> list[dict[int, list[float]]]:
    """Inverse of `pack`; nothing of groups that the checkpoint does not know. CheckpointError if they are no norms."""
    groups: dict[str, dict[int, list[float]]] = {}
    for name, values in layout.state_of(found, NORMS).items() if found is not None and found.has(NORMS) else ():
        rank, _, where = name.partition("/")
        numbers = values.double().tolist() if rank.isdecimal() and values.dim() == 1 else []
        if not numbers or not all(0 < number < math.inf for number in numbers):
            raise CheckpointError(f"{found.path / NORMS if found else NORMS} holds {name[:60]!r}, which are no norms of a group")
        groups.setdefault(where, {})[int(rank)] = numbers
    return [groups.get(where, {}) for where in layout.ranges(plan, plan.groups)]
