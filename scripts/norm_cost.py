"""Cost of a push's norm: decode_add against measure and add, and both as a share of a master's lane.

    python scripts/norm_cost.py [SPEC ...]

One segment of 11.2 million values (ResNet-18), in turns within one process; medians of 15. A lane is taken to be 4 such
additions, plain SGD, and coding the change with topk:ratio=0.005+fp16 or, where the spec is identity, copying it.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from psnode.codecs.sinks import Added
from psnode.codecs.sources import Difference
from psnode.config.effects import AUTO
from psnode.exchange.shard.verdicts import Closing, Judge
from psnode.plan.groups import Tensor, make_plan
from psnode.plan.part import all_of

SIZE, TURNS, WORKERS = 11_200_000, 15, 4


def seconds(act: Callable[[], object]) -> float:
    """Processor time of one time."""
    began = time.thread_time()
    act()
    return time.thread_time() - began


def cost(spec: str, size: int = SIZE) -> str:
    """A line for a codec, with `size` values."""
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
    return f"{spec}: addition x {found['measured'] / found['plain']:.3f}, lane x {lanes['measured'] / lanes['plain']:.3f}"


def _turns(works: list[Callable[[], object]]) -> list[list[float]]:
    return [[seconds(work) for work in works] for _ in range(TURNS)]


def judging(cap: float, groups: int = 20) -> str:
    """A line: processor time of the verdicts of a round, of `groups` groups and WORKERS workers, where nothing is suspicious."""
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
    return f"verdicts with a cap of {cap:g}: {1e6 * statistics.median(times[-TURNS:]) / groups:.0f} us a group and round"


if __name__ == "__main__":
    for cap in (AUTO, 10.0):
        print(judging(cap), flush=True)
    for each in sys.argv[1:] or ["identity", "topk:ratio=0.005+fp16", "qsgd"]:
        print(cost(each), flush=True)
