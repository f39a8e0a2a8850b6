"""`python -m studies.norm_trials`: numbers of honest gradients, and of gradients times 100, that the norm cap would refuse.

    python -m studies.norm_trials --train "--network LeNet --dataset mnist --data-dir DIR --batch-size 16 --lr-schedule cosine \
        --max-steps 2400 --scheme dense --lr 0.05 --local 4 --threads 1 --train-dir runs/norms"

This command trains with the given settings of `psnode train` and the cap off, and records the norm of every push of every
group. It then replays the norms, as rounds of all workers (bsp), in three ways. With unchanged norms, it counts the honest
gradients that the rules auto and 10 refuse. In trials with one false gradient, one gradient of a random worker in a random
round is multiplied by 100; the study counts the trials in which the rule 10 refuses this gradient. In trials with a lying
worker, all gradients of a random worker from a random round on are multiplied by 100; the study counts the trials in which the
rule 10 refuses one of them within 60 rounds.
"""

from __future__ import annotations

import random
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from unittest.mock import patch

from psnode.cli import main as psnode
from psnode.config.declaration import ABSENT, option
from psnode.config.effects import AUTO
from psnode.errors import PsnodeError
from psnode.exchange.shard import reduction
from psnode.exchange.shard.norm_verdicts import Closing, Judge
from psnode.plans.groups import Tensor
from psnode.plans.part import all_of
from psnode.plans.rule import make_plan
from studies.harness import Column, Found, Study, main

FACTOR, TRIALS, PATIENCE, BEFORE, CAP = 100.0, 100, 60, 110, 10.0
Round = dict[int, tuple[float, ...]]
Lie = Callable[[int, int], float]


class Recorder(Judge):
    """A judge that records every push.

    `rounds`: a list of rounds; each has, by rank, the norms of the groups.
    """

    rounds: list[Round] = []

    def _conclude(self, alone: bool) -> None:
        ranks = sorted({rank for pushes in self._pushes.values() for rank, _ in pushes})
        found = {
            rank: tuple(sum(n for (who, _), n in pushes.items() if who == rank) for pushes in self._pushes.values())
            for rank in ranks
        }
        self.rounds.append(found)
        super()._conclude(alone)


def play(rounds: Sequence[Round], cap: float, lie: Lie = lambda number, rank: 1.0) -> set[tuple[int, int]]:
    """Replay `rounds` with the cap `cap`, and return the round and rank of each refused gradient.

    Each norm is multiplied by the result of `lie` for its round and rank.
    """
    groups = len(next(iter(rounds[0].values())))
    tensors = [Tensor(f"t{index}.w", (1,)) for index in range(groups)]
    judge, refused = (
        Judge(all_of(make_plan(tensors, "identity", group_by="layer", min_compress_bytes=0)), cap),
        set[tuple[int, int]](),
    )
    for number, pushes in enumerate(rounds):
        held = set()
        for group in range(groups):
            for rank, norms in sorted(pushes.items()):
                if judge.suspects(group, rank, number + 1, norms[group] * lie(number, rank)):
                    held.add((group, rank))
        for group in range(groups):
            waits = any(where == group for where, _ in held)
            judge.hear(Closing(group, number, 0.0), waits=waits, alone=len(pushes) == 1)
        refused |= {(number, rank) for _, rank in held if (rank, number + 1) in judge.verdicts}
    return refused


def lies(rounds: Sequence[Round], who: int, first: int, last: int) -> bool:
    """Return True if a push of rank `who` is refused when its pushes of rounds `first` to `last` are multiplied by FACTOR."""
    start = max(0, first - BEFORE)

    def lie(number: int, rank: int) -> float:
        return FACTOR if rank == who and first <= start + number <= last else 1.0

    return any(rank == who and start + number >= first for number, rank in play(rounds[start : last + 1], CAP, lie))


def trials(rounds: Sequence[Round], dice: random.Random) -> tuple[int, int]:
    """Return two counts out of TRIALS: the refused single lies, and the lying workers of which a push is refused."""
    once = always = 0
    for _ in range(TRIALS):
        at, begin = dice.randrange(len(rounds)), dice.randrange(max(1, len(rounds) - PATIENCE))
        once += lies(rounds, dice.choice(sorted(rounds[at])), at, at)
        always += lies(rounds, dice.choice(sorted(rounds[begin])), begin, begin + PATIENCE)
    return once, always


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.norm_trials`."""

    train: str = option(ABSENT, "Flags of train, as one text; --local N among them.", metavar="FLAGS")


def measure(options: Options) -> Found:
    """Return one row, with the counts of the run. Raises PsnodeError if the run fails."""
    Recorder.rounds.clear()
    with patch.object(reduction, "Judge", Recorder):
        code = psnode(["train", "--norm-cap", "off", "--eval-freq", "0", "--no-tensorboard", *shlex.split(options.train)])
    if code != 0:
        raise PsnodeError(f"the run ended with exit code {code}: see its messages above")
    rounds = Recorder.rounds
    once, always = trials(rounds, random.Random(1))
    honest = {"auto": len(play(rounds, AUTO)), "cap": len(play(rounds, CAP))}
    return Found([{"rounds": len(rounds), **honest, "once": once, "always": always}])


COLUMNS = (
    Column("rounds", "{rounds}"),
    Column("honest, refused by auto", "{auto}"),
    Column(f"by {CAP:g}", "{cap}"),
    Column(f"one gradient x {FACTOR:g}, refused of {TRIALS}", "{once}"),
    Column(f"all from a round on, of {TRIALS}", "{always}"),
)
STUDY = Study(Options, measure, COLUMNS, head=lambda result: f"`{result['train']}`.")


if __name__ == "__main__":
    sys.exit(main(STUDY))
