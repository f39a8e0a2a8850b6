"""SeCoPa's decision for each gradient: whether it is coded, and in how many parts it is sent.

Y. Bai et al., "Gradient compression supercharged high-performance data parallel DNN training" (HiPress), SOSP 2021. For a
gradient of m bytes, the paper assumes that the steps of its exchange follow each other, adds up their times, and compares the
sums:

    uncoded              alpha send(m)
    coded in K parts     alpha send(r m / K) + beta encode(m / K) + gamma decode(r m / K),

where r is the ratio of coded to uncoded bytes. The numbers of steps alpha, beta and gamma depend on K and on the method of
exchange. In the paper the parts go to several aggregators. In psnode all parts go to one master: they share its link and its
lanes. So for P workers and l lanes, the rule is

    coded in K parts     K [P (frame in + frame out) + encode + apply] + ceil(K / l) [P decode + update],   all of one part,

where the seconds are those of one part. If R roots work at the same time (StageLoads), R parts travel at the same time, and
there are R l lanes. An uncoded gradient is one part that consists only of frames. In reality, steps of different parts and
gradients overlap, so this rule codes too seldom if the link is the bottleneck. With `overlapped`, the stages of the K parts
run in parallel: the exchange takes the time of the longest stage plus 1 / K of the times of the other stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from psnode.errors import ConfigurationError
from psnode.jobs.planning.profile import TensorTimes
from psnode.jobs.planning.search.grouping import CodecCandidate, GroupChoice
from psnode.jobs.planning.search.step_clocks import StepClocks
from psnode.plans.groups import IDENTITY
from psnode.plans.rule import PARTITION

MOST_PARTS = 8


class ExchangeTimes(NamedTuple):
    """Seconds of the five stages of a gradient's exchange.

    The stages are a worker's coder, the link to the master, the master's lanes, the link back, and the application on a
    worker.
    """

    coder: float
    inward: float
    lanes: float
    outward: float
    apply: float

    def seconds(self, parts: int, *, overlapped: bool) -> float:
        """Return the time of the exchange: the sum of its stages.

        With `overlapped`, return the shorter time of stages that work on `parts` parts in parallel.
        """
        longest = max(self)
        return longest + (sum(self) - longest) / parts if overlapped else sum(self)


def exchange_times(clocks: StepClocks, candidate: CodecCandidate, coded: float, plain: float, parts: int = 1) -> ExchangeTimes:
    """Return the times of the stages of a gradient's exchange in `parts` equal parts.

    `coded`, `plain`: the numbers of coordinates in the whole gradient. If `coded` is 0, only frames take time.
    """
    loads, curves = clocks.loads, candidate.curves
    here = (coded / parts, plain / parts)
    inward, outward = clocks.frames(candidate, *here)
    turns = math.ceil(parts / loads.roots)
    inward, outward = turns * loads.inward * inward, turns * loads.outward * outward
    if not coded:
        return ExchangeTimes(0.0, inward, 0.0, outward, 0.0)
    turns = math.ceil(parts / clocks.lanes)
    served = turns * (loads.gradients * curves.decode.at(*here) + curves.update.at(*here))
    return ExchangeTimes(parts * curves.encode.at(*here), inward, served, outward, parts * curves.apply.at(*here))


def secopa(clocks: StepClocks, *, overlapped: bool = False, most: int = MOST_PARTS) -> tuple[GroupChoice, ...]:
    """Return SeCoPa's groups: one for every tensor of `clocks`, either coded by the first candidate or uncoded.

    `overlapped`: True if the stages of an exchange work on different parts in parallel. `most`: the maximum number of
    parts that is tried; a part has at least PARTITION coordinates. Raises ConfigurationError if no candidate sends
    gradients uncoded.
    """
    bare = next((candidate for candidate in clocks.candidates if candidate.codec == IDENTITY), None)
    if bare is None:
        raise ConfigurationError("selective compression needs a candidate that sends gradients as they are, such as dense")
    own, found = clocks.candidates[0], []
    for tensor in clocks.tensors:
        parts = 0
        if own is not bare and clocks.rules.codes(tensor.name, tensor.shape, own.codec):
            parts = _parts(clocks, tensor, own, bare, range(1, most + 1), overlapped=overlapped)
        found.append(GroupChoice((tensor.name,), own.flags, parts) if parts else GroupChoice((tensor.name,), bare.flags))
    return tuple(found)


def _parts(
    clocks: StepClocks, tensor: TensorTimes, own: CodecCandidate, bare: CodecCandidate, tried: Sequence[int], *, overlapped: bool
) -> int:
    """Return the number of parts with which the coded exchange of a tensor is quickest; 0 if the uncoded exchange is quicker."""
    size = tensor.nbytes // 4
    least, best = exchange_times(clocks, bare, 0.0, size).seconds(1, overlapped=overlapped), 0
    for parts in tried:
        if parts > 1 and size < parts * PARTITION:
            break
        seconds = exchange_times(clocks, own, size, 0.0, parts).seconds(parts, overlapped=overlapped)
        if seconds < least:
            least, best = seconds, parts
    return best
