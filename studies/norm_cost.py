"""`python -m studies.norm_cost`: the time that computing a push's norm adds to an addition, and to the work of a lane.

An addition with the norm is measure and add; without the norm it is decode_add. The segment has 11.2 million values
(ResNet-18). The actions take turns within one process, and times are medians of 15. A lane is a thread of the master that works
on groups. Its work is modelled as four additions, plain SGD, and coding the change with topk:ratio=0.005+fp16. For the spec
identity the change is copied instead of coded. The study also states the processor time of a round's verdicts.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from psnode.codecs.sinks import Added
from psnode.codecs.sources import Difference
from psnode.config.declaration import option
from psnode.config.effects import AUTO
from psnode.exchange.shard.norm_verdicts import Closing, Judge
from psnode.plans.groups import Tensor
from psnode.plans.part import all_of
from psnode.plans.rule import make_plan
from studies.harness import Column, Found, Result, Study, codecs, main

TURNS, WORKERS, GROUPS = 15, 4, 20


def seconds(act: Callable[[], object]) -> float:
    """Return the processor time of one call, in seconds."""
    began = time.thread_time()
    act()
    return time.thread_time() - began


def cost(spec: str, size: int) -> dict[str, Any]:
    """Return a row for a segment of `size` values coded by `spec`.

    `addition` and `lane`: the time with the norm divided by the time without it, for an addition and for the work of a lane.
    """
    rng = np.random.default_rng(1)
    codec, down = get_codec(spec), get_codec("topk:ratio=0.005+fp16")
    payload = codec.encode(rng.standard_normal(size).astype(np.float32), Key.derive(1))
    total, weights, replica, room = (np.zeros(size, np.float32) for _ in range(4))

    def rest() -> None:
        np.subtract(weights, np.multiply(total, np.float32(0.01), out=room), out=weights)
        if spec == "identity":
            np.copyto(replica, weights)
        else:
            down.encode(Difference(weights, replica, room), Key.derive(2), sink=Added(replica))

    works = {
        "plain": lambda: codec.decode_add(payload, total),
        "measured": lambda: codec.measure(payload, room).add(total, np.float32(1)),
        "rest": rest,
    }
    for work in works.values():
        work()
    found = {
        name: statistics.median(times) for name, times in zip(works, zip(*_turns(list(works.values())), strict=True), strict=True)
    }
    lanes = {name: WORKERS * found[name] + found["rest"] for name in ("plain", "measured")}
    return {"spec": spec, "addition": found["measured"] / found["plain"], "lane": lanes["measured"] / lanes["plain"]}


def _turns(works: list[Callable[[], object]]) -> list[list[float]]:
    return [[seconds(work) for work in works] for _ in range(TURNS)]


def judging(cap: float) -> float:
    """Return the processor time, in microseconds per group, of a round's verdicts on WORKERS honest workers."""
    groups = GROUPS
    tensors = [Tensor(f"t{index}.w", (1,)) for index in range(groups)]
    judge = Judge(all_of(make_plan(tensors, "identity", group_by="layer", min_compress_bytes=0)), cap)
    dice, times = random.Random(1), []
    for number in range(150):
        norms = [(group, rank, dice.uniform(1, 2)) for group in range(groups) for rank in range(1, WORKERS + 1)]
        began = time.thread_time()
        for group, rank, norm in norms:
            judge.suspects(group, rank, number + 1, norm)
        for group in range(groups):
            judge.hear(Closing(group, number, 0.1), waits=False, alone=False)
        times.append(time.thread_time() - began)
    return 1e6 * statistics.median(times[-TURNS:]) / groups


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.norm_cost`."""

    codec: tuple[str, ...] = option(("identity", "topk:ratio=0.005+fp16", "qsgd"), "Repeat.", repeated=True, metavar="SPEC")
    size: int = option(11_200_000, "Values of the segment.", minimum=1)


def measure(options: Options) -> Found:
    """Return a row per codec. For all rows together: `verdicts`, the microseconds of a round's verdicts per group, by cap."""
    verdicts = {f"{cap:g}": judging(cap) for cap in (AUTO, 10.0)}
    return Found([cost(spec, options.size) for spec in codecs(options.codec)], {"verdicts": verdicts})


def _foot(result: Result) -> str:
    return "\n".join(f"Verdicts with a cap of {cap}: {us:.0f} us a group and round." for cap, us in result["verdicts"].items())


COLUMNS = (
    Column("codec", "{spec}", left=True),
    Column("addition, times", "{addition:.3f}"),
    Column("lane, times", "{lane:.3f}"),
)
STUDY = Study(Options, measure, COLUMNS, foot=_foot)


if __name__ == "__main__":
    sys.exit(main(STUDY))
