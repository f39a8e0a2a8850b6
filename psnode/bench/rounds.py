"""`psnode bench rounds`: time that deciding over rounds takes for each gradient frame, by number of workers.

Workers are played: each takes the newest version and sends the frames of its groups; who sends next is random. The frames are
empty, and additions and updates do nothing, so that the time is that of the decisions alone.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psnode.bench.hardware import hardware
from psnode.bench.saving import save
from psnode.config import Config
from psnode.exchange.shard.consistency import Rule, rule_of
from psnode.exchange.shard.rounds import Rounds
from psnode.protocol.wire import Flag, Frame, Kind

WORKERS = (4, 64, 256, 1024)
RULES = ("bsp", "kofn", "ssp", "asp")
_FIRST = 0.75  # share of the workers that close a round under kofn
_SEED = 1
_NOTHING = np.empty(0, np.uint8)


class _Play:
    """A job of `workers` workers under `rule`. `offering`, `opening`: seconds spent so far; `version`: of the open round."""

    def __init__(self, workers: int, groups: int, rule: Rule) -> None:
        self.offering = self.opening = 0.0
        self.version = -1
        self._groups = groups
        self._closed = groups
        self._rounds = Rounds(range(groups), rule, by_rank=True, add=lambda frame: None, close=self._close)
        self._rounds.admit(range(1, workers + 1), 0)
        self._based = dict.fromkeys(range(1, workers + 1), 0)
        self._sent = dict.fromkeys(self._based, 0)  # groups of the step at hand
        self._sending: list[int] = []
        self._waiting = list(self._based)  # for a newer version
        self._random = random.Random(_SEED)
        self._open()

    def _close(self, group: int) -> None:
        self._closed += 1

    def _open(self) -> None:
        """Complete versions as long as waiting gradients are enough for one; then have the waiting workers take the newest."""
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
        """Offer the next frame of one of the workers."""
        place = self._random.randrange(len(self._sending))
        rank = self._sending[place]
        group, based = self._sent[rank], self._based[rank]
        frame = Frame(Kind.GRADIENT, Flag.NONE, rank, group, based + 1, based, _NOTHING)
        begun = time.perf_counter()
        self._rounds.offer(frame)
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


def measure(workers: Sequence[int], rules: Sequence[str], *, groups: int, frames: int, repeats: int) -> list[dict[str, Any]]:
    """A row a rule and number of workers. `offer`: microseconds of a frame; `open`: of a round; `versions`: rounds of a play."""
    return [_row(name, count, groups, frames, repeats) for name in rules for count in workers]


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


def main(workers: Sequence[int], rules: Sequence[str], groups: int, frames: int, repeats: int, json_file: Path | None) -> int:
    """Measure, print a table, write it as JSON; the exit code."""
    rows = measure(workers or WORKERS, rules or RULES, groups=groups, frames=frames, repeats=repeats)
    print("| rule | workers | offer, us a frame | least to most | open, us a round | versions |\n|---|---:|---:|---:|---:|---:|")
    for row in rows:
        offer = row["offer"]
        spread = f"{offer['low']:.2f} to {offer['high']:.2f}"
        print(f"| {row['rule']} | {row['workers']} | {offer['median']:.2f} | {spread} | {row['open']:.1f} | {row['versions']} |")
    save({**hardware(), "groups": groups, "frames": frames, "repeats": repeats, "rows": rows}, json_file)
    return 0
