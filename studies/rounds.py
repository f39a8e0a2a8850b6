"""`python -m studies.rounds`: time of the decisions about rounds per gradient frame, by number of workers.

Workers are simulated. Each worker takes the newest version and sends the frames of its groups; the next frame always comes from
a random worker. Frames are None, and additions and updates do nothing, so only the decisions take time.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from psnode.config import Config
from psnode.config.declaration import option
from psnode.exchange.shard.consistency import Rule, rule_of
from psnode.exchange.shard.rounds import Origin, Rounds, Slot
from studies.harness import Column, Found, Study, main

WORKERS = (4, 64, 256, 1024)
RULES = ("bsp", "kofn", "ssp", "asp")
_FIRST = 0.75  # share of the workers that close a round under kofn
_SEED = 1


class _Play:
    """A simulated job under `rule`.

    `offering`, `opening`: seconds spent so far on offering frames and on opening rounds. `version`: the version of the open
    round.
    """

    def __init__(self, workers: int, groups: int, rule: Rule) -> None:
        self.offering = self.opening = 0.0
        self.version = -1
        self._groups = groups
        self._closed = groups
        slots = [Slot(group) for group in range(groups)]
        self._rounds = Rounds[None](slots, rule, by_rank=True, add=lambda frame: None, close=self._close)
        self._rounds.admit(range(1, workers + 1), 0)
        self._based = dict.fromkeys(range(1, workers + 1), 0)
        self._sent = dict.fromkeys(self._based, 0)  # by rank, the number of groups sent in the present step
        self._sending: list[int] = []
        self._waiting = list(self._based)  # the workers that wait for a newer version
        self._random = random.Random(_SEED)
        self._open()

    def _close(self, slot: Slot) -> None:
        self._closed += 1

    def _open(self) -> None:
        """Complete versions as long as the gradients that wait suffice for the next one.

        Then give the newest version to the waiting workers.
        """
        begun = time.perf_counter()
        while self._closed == self._groups:
            self.version, self._closed = self.version + 1, 0
            self._rounds.open(self.version)
        self.opening += time.perf_counter() - begun
        for rank in self._waiting:
            self._take(rank)
        self._waiting.clear()

    def _take(self, rank: int) -> None:
        self._based[rank], self._sent[rank] = self.version, 0
        self._sending.append(rank)

    def offer(self) -> None:
        """Offer the next frame of a random worker."""
        place = self._random.randrange(len(self._sending))
        rank = self._sending[place]
        group, based = self._sent[rank], self._based[rank]
        origin = Origin(Slot(group), rank, based)
        begun = time.perf_counter()
        self._rounds.offer(origin, None)
        self.offering += time.perf_counter() - begun
        self._sent[rank] += 1
        if self._sent[rank] == self._groups:
            self._sending[place] = self._sending[-1]
            self._sending.pop()
            self._waiting.append(rank)
            if based < self.version:
                self._take(self._waiting.pop())
        if self._closed == self._groups:
            self._open()


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.rounds`."""

    workers: tuple[int, ...] = option(WORKERS, "Repeat for more.", minimum=1, repeated=True, metavar="P", aliases=("-n",))
    consistency: tuple[str, ...] = option((), "Repeat; default: all.", choices=RULES, repeated=True)
    groups: int = option(4, "Groups a step.", minimum=1)
    frames: int = option(50_000, "Frames that are offered in a repeat.", minimum=1)
    repeats: int = option(5, "The median of this many, and their spread.", minimum=1)


def measure(options: Options) -> Found:
    """Return a row per rule and number of workers.

    `offer`: microseconds per frame. `open`: microseconds per round. `versions`: versions of a run.
    """
    sizes = options.groups, options.frames, options.repeats
    return Found([_row(name, count, *sizes) for name in options.consistency or RULES for count in options.workers])


def _row(name: str, workers: int, groups: int, frames: int, repeats: int) -> dict[str, Any]:
    first = max(1, int(_FIRST * workers)) if name == "kofn" else None
    rule = rule_of(Config(consistency=name, num_aggregate=first), workers)
    offers, opens = [], []
    for _ in range(repeats):
        play = _Play(workers, groups, rule)
        for _ in range(frames):
            play.offer()
        offers.append(1e6 * play.offering / frames)
        opens.append(1e6 * play.opening / (play.version + 1))
    return {
        "rule": name,
        "workers": workers,
        "offer": {"median": statistics.median(offers), "low": min(offers), "high": max(offers)},
        "open": statistics.median(opens),
        "versions": play.version,
    }


COLUMNS = (
    Column("rule", "{rule}", left=True),
    Column("workers", "{workers}"),
    Column("offer, us a frame", "{offer[median]:.2f}"),
    Column("least to most", "{offer[low]:.2f} to {offer[high]:.2f}"),
    Column("open, us a round", "{open:.1f}"),
    Column("versions", "{versions}"),
)
STUDY = Study(
    Options,
    measure,
    COLUMNS,
    head=lambda result: f"{result['groups']} groups, {result['frames']:,} frames; the median of {result['repeats']}.",
)


if __name__ == "__main__":
    sys.exit(main(STUDY))
