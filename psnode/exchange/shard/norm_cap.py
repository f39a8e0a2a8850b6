"""Reference norms, with which the norms of pushes are compared. They come from earlier pushes of all workers.

An honest gradient may have a hundred times the median norm: late in training nearly all batches have almost no loss, and a
batch with one hard example has a large loss (docs/decisions/norm-cap.md has the figures). So the reference is the largest of
three norms:

    m            the median of a set that contains the last 25 norms of every worker
    u / 2        u: the median, over the workers, of the largest of a worker's last 100 norms
    w            the median of the other workers' latest norms: a rise that all workers see is no worker's fault

All medians are lower medians, so that one worker of two or four cannot raise m or u above the norms of the others. For a push
of a worker, w leaves out this worker's own norms. Therefore the norms of refused pushes may
also count, and a norm that most workers have had once becomes usual. Norms of zero are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import torch

from psnode.errors import CheckpointError
from psnode.plans.part import PlanPart
from psnode.records import state_names
from psnode.records.checkpoint import NORMS, Checkpoint

RECENT = 25
WINDOW = 100
SHARE = 0.5
WHOLE = state_names.WHOLE
LARGEST = state_names.LARGEST


class Norms:
    """Norms of the pushes of a group, or of whole gradients.

    The state of this object is `kept`: norms by rank, oldest first. For m, u and w see the module.
    """

    def __init__(self, kept: Mapping[int, Sequence[float]] | None = None) -> None:
        # by rank, then by step; norms from a checkpoint have steps below zero
        self._kept = {rank: dict(enumerate(norms, -len(norms))) for rank, norms in sorted((kept or {}).items())}
        self._silent = dict.fromkeys(self._kept, 0)  # by rank, number of norms of other ranks since the rank's last norm
        self.usual = self._reference()  # the larger of m and u / 2; None before the first norm

    @property
    def kept(self) -> dict[int, tuple[float, ...]]:
        """The last norms of each rank, oldest first."""
        return {rank: tuple(norms.values()) for rank, norms in self._kept.items()}

    def reference(self, rank: int) -> float | None:
        """Return the reference norm for a push of `rank`, the largest of m, u / 2 and w; None if no norm is known."""
        latest = [next(reversed(norms.values())) for other, norms in self._kept.items() if other != rank]
        return max((value for value in (self.usual, median(latest)) if value is not None), default=None)

    def note(self, pushes: Mapping[tuple[int, int], float]) -> None:
        """Record the norms of a round, given by rank and step. A later norm of the same step replaces the earlier norm."""
        for (rank, step), norm in sorted(pushes.items()):
            if not norm:
                continue
            norms = self._kept.setdefault(rank, {})
            norms[step] = norm
            while len(norms) > WINDOW:
                norms.pop(next(iter(norms)))
            self._silent = {other: count + 1 for other, count in self._silent.items()} | {rank: 0}
        for rank in [rank for rank, count in self._silent.items() if count > WINDOW * len(self._kept)]:  # the rank has left
            for known in (self._kept, self._silent):
                known.pop(rank, None)

    def renew(self) -> None:
        """Compute `usual`, the larger of m and u / 2, from the recorded norms. Call this at the end of a round."""
        self.usual = self._reference()

    def _reference(self) -> float | None:
        recent = median([norm for norms in self._kept.values() for norm in islice(reversed(norms.values()), RECENT)])
        largest = median([max(norms.values()) for norms in self._kept.values()])
        return None if recent is None or largest is None else max(recent, SHARE * largest)


def median(values: Sequence[float]) -> float | None:
    """Return the lower median of `values`; None if there are no values."""
    return sorted(values)[(len(values) - 1) // 2] if values else None


def pack(groups: Mapping[int, Norms], whole: Norms, largest: float, part: PlanPart) -> dict[str, torch.Tensor]:
    """Return norms as tensors for a checkpoint. `largest`: the largest norm ever accepted.

    The tensors are named RANK/RANGE for each group of `part` (psnode.records.state_names), RANK/whole for whole gradients, and
    `largest`.
    """
    named = [*((where, groups[group]) for group, where in _ranges(part).items() if group in groups), (WHOLE, whole)]
    found = {
        f"{rank}/{where}": torch.tensor(kept, dtype=torch.float64) for where, each in named for rank, kept in each.kept.items()
    }
    return found | ({LARGEST: torch.tensor([largest], dtype=torch.float64)} if largest else {})


def unpack(found: Checkpoint | None, part: PlanPart) -> tuple[dict[int, dict[int, list[float]]], dict[int, list[float]], float]:
    """Return a checkpoint's norms of groups and of whole gradients, and its largest norm: the inverse of `pack`.

    Groups that are not in the checkpoint have no norms. Raises CheckpointError for values that cannot be norms. If an older
    checkpoint has only norms of groups, the norms of whole gradients are computed from them.
    """
    groups: dict[str, dict[int, list[float]]] = {}
    largest = 0.0
    for name, values in state_names.state_of(found, NORMS).items() if found is not None and found.has(NORMS) else ():
        rank, _, where = name.partition("/")
        numbers = values.double().tolist() if (rank.isdecimal() or name == LARGEST) and values.dim() == 1 else []
        if not numbers or not all(0 < number < math.inf for number in numbers):
            raise CheckpointError(f"{found.path / NORMS if found else NORMS} holds {name[:60]!r}, which are no norms of a group")
        if name == LARGEST:
            largest = numbers[0]
        else:
            groups.setdefault(where, {})[int(rank)] = numbers
    whole = groups.pop(WHOLE, None) or _added_up(groups.values())
    largest = largest or max((norm for norms in whole.values() for norm in norms), default=0.0)
    return {group: groups.get(where, {}) for group, where in _ranges(part).items()}, whole, largest


def _ranges(part: PlanPart) -> dict[int, str]:
    """Return, by group of `part`, the name of its range of coordinates. Unlike a group's number, it is the same in every plan."""
    return dict(
        zip(part.groups, state_names.ranges(part.whole, [part.whole.groups[index] for index in part.groups]), strict=True)
    )


def _added_up(groups: Iterable[Mapping[int, Sequence[float]]]) -> dict[int, list[float]]:
    """Return norms of whole gradients, by rank, computed from the norms of groups, oldest first.

    The latest norms of a rank's groups give one norm of a whole gradient, the norms before them another, and so on.
    """
    found: dict[int, list[float]] = {}
    for each in groups:
        for rank, norms in each.items():
            squares = found.setdefault(rank, [])
            squares += [0.0] * (len(norms) - len(squares))
            for index, norm in enumerate(reversed(norms)):
                squares[index] += norm**2
    return {rank: [math.sqrt(square) for square in reversed(squares)] for rank, squares in found.items()}
