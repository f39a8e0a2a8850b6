"""Random profiles and candidates for tests of the search."""

from __future__ import annotations

import random

from psnode.jobs.planning.profile import HostCosts, Profile, TensorTimes
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.planning.search.codec_curves import CodecCurves, CostLine
from psnode.jobs.planning.search.grouping import CodecCandidate

CODECS = ("qsgd:levels=15,bucket=512", "identity", "bf16")  # of which two code tensors of two dimensions
ERRORS = (0.3, 0.0, 1e-5)


def random_line(draw: random.Random, fixed: float, slope: float) -> CostLine:
    return CostLine(fixed * draw.random(), slope * draw.random(), slope * draw.random())


def random_candidate(draw: random.Random, place: int) -> CodecCandidate:
    """Return a candidate whose stages take some milliseconds for a thousand coordinates. `place`: the index of its codec in
    CODECS.
    """
    times = {name: random_line(draw, 1e-3, 3e-6) for name in ("encode", "apply", "decode", "update")}
    nbytes = {name: random_line(draw, 100, 4) for name in ("up", "down")}
    extra = CostLine(2e-4 * draw.random(), 0.0, 0.0)
    curves = CodecCurves(**times, **nbytes, extra=extra, bookkeeping=random_line(draw, 2e-4, 5e-7))
    return CodecCandidate(f"flags {place}", CODECS[place], curves, ERRORS[place])


def random_profile(draw: random.Random, count: int, *, mirrored: bool = False) -> Profile:
    """Return a profile of `count` tensors, some of which are vectors. `mirrored`: gradients become ready in the opposite
    order of the tensors' first use.
    """
    tensors = []
    ready = sorted(0.03 * draw.random() for _ in range(count))
    needed = [0.02 * draw.random() for _ in range(count)]
    for place in range(count):
        shape = (draw.randint(20, 60), 40) if draw.random() < 0.7 else (draw.randint(1, 900),)
        use = sorted(needed, reverse=True)[place] if mirrored else needed[place]
        tensors.append(TensorTimes(shape, ready[place], use, f"tensor {place}"))
    host = HostCosts(2e-8 * draw.random(), 2e-8 * draw.random(), 5e-4 * draw.random(), 0.0, 4, 0.9)
    return Profile("model", 1, 0.02 + 0.01 * draw.random(), ready[-1], 0.0, tuple(tensors), host, {}, {})


def random_scenario(draw: random.Random) -> Scenario:
    rate = draw.choice([None, 1e7, 5e7])
    return Scenario(draw.randint(1, 4), rate, 1e-3 * draw.random(), draw.choice([2, 3, 5]), shared=draw.random() < 0.3)
