"""Effects of the norm cap on a run: honest gradients that it would refuse, and gradients times a hundred that it does.

    python scripts/norm_trials.py --network LeNet --dataset mnist --data-dir DIR --batch-size 16 --lr-schedule cosine \
        --max-steps 2400 --scheme dense --lr 0.05 --local 4 --threads 1 --train-dir runs/norms

trains with these settings of `psnode train` and the cap off, notes the norm of every push of every group, and plays them through
the rule as rounds of all workers (bsp): as they were; with one push of a random worker in a random round times 100; with all of
its pushes from a random round on times 100. A line a group: honest pushes refused, and the largest over its bound; of the
trials of the first kind those refused; of the second kind those of which something is refused within 60 rounds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from psnode.cli import main
from psnode.exchange.shard import reduction
from psnode.exchange.shard.norm_cap import Norms

FACTOR, TRIALS, PATIENCE, BEFORE, CAP = 100.0, 100, 60, 110, 10.0
Round = dict[int, float]
Lie = Callable[[int, int, float], float]


class Played(NamedTuple):
    """The refused pushes by round and rank, and the largest norm over its bound."""

    refused: set[tuple[int, int]]
    nearest: float


class Recorder(Norms):
    """Notes every push. `groups`: of each group, its rounds."""

    groups: list[list[Round]] = []

    def __init__(self, *given: object) -> None:
        super().__init__(None)
        self._rounds: list[Round] = []
        self._open: Round = {}
        self.groups.append(self._rounds)

    def offer(self, rank: int, norm: float) -> None:
        self._open[rank] = norm

    def accept(self, accepted: object) -> None:
        self._rounds.append(self._open)
        self._open = {}


def play(rounds: Sequence[Round], lie: Lie = lambda number, rank, norm: norm) -> Played:
    """Verdicts of the rule on rounds, each push of which is changed by `lie` (round, rank, norm)."""
    norms, refused, nearest = Norms(CAP), set[tuple[int, int]](), 0.0
    for number, pushes in enumerate(rounds):
        told = {rank: lie(number, rank, norm) for rank, norm in sorted(pushes.items())}
        accepted, held = [], []
        for rank, norm in told.items():
            norms.offer(rank, norm)
            (accepted if norms.passes(norm) else held).append((rank, norm))
            nearest = max(nearest, norm / (CAP * norms.usual)) if norms.usual and norms.passes(norm) else nearest
        for rank, norm in held:
            bound = norms.bound(rank)
            nearest = max(nearest, norm / bound) if bound else nearest
            if bound is not None and norm > bound:
                refused.add((number, rank))
                norms.refuse(rank, norm)
            else:
                accepted.append((rank, norm))
        norms.accept(sorted(accepted))
    return Played(refused, nearest)


def lies(rounds: Sequence[Round], who: int, first: int, last: int) -> bool:
    """True if something is refused of `who`, all of whose pushes are times FACTOR from round `first` to `last`."""
    start = max(0, first - BEFORE)

    def lie(number: int, rank: int, norm: float) -> float:
        return norm * (FACTOR if rank == who and first <= start + number <= last else 1)

    return any(rank == who and start + number >= first for number, rank in play(rounds[start : last + 1], lie).refused)


def trials(rounds: Sequence[Round], dice: random.Random) -> tuple[int, int]:
    """Of TRIALS each: single lies that are refused, and liars of whom something is."""
    once = always = 0
    for _ in range(TRIALS):
        at, begin = dice.randrange(len(rounds)), dice.randrange(max(1, len(rounds) - PATIENCE))
        once += lies(rounds, dice.choice(sorted(rounds[at])), at, at)
        always += lies(rounds, dice.choice(sorted(rounds[begin])), begin, begin + PATIENCE)
    return once, always


if __name__ == "__main__":
    reduction.Norms = Recorder  # type: ignore[misc,attr-defined]
    code = main(["train", "--norm-cap", "off", "--eval-freq", "0", "--no-tensorboard", *sys.argv[1:]])
    for group, rounds in enumerate(each for each in Recorder.groups if each):
        honest = play(rounds)
        once, always = trials(rounds, random.Random(1))
        print(
            f"group {group}: {len(rounds)} rounds, honest refused {len(honest.refused)}, the largest {honest.nearest:.2f} of "
            f"its bound; one push x {FACTOR:g}: {once} of {TRIALS} refused; all from a round on: {always} of {TRIALS}"
        )
    sys.exit(code)
