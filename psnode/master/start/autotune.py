"""Search for the fastest group size in trial runs.

Large groups need fewer frames and wake-ups; small groups leave less work after the backward pass. The better size depends on
processors, links, model and codec together, so steps are rehearsed with several sizes. The choice becomes part of the
configuration, since it determines where flat segments are cut, and thus which tensors are coded together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from psnode.config import Config
from psnode.config.scheme import Scheme
from psnode.exchange.routes.topologies import group_bytes_of, is_central
from psnode.master.start.startup import plan_for
from psnode.master.start.trial_run import ROUNDS, TrialRun
from psnode.plans.groups import Plan
from psnode.plans.rule import DEFAULT_GROUP_BYTES, SMALL_MODEL_BYTES
from psnode.protocol.channel import FrameChannel
from psnode.protocol.messages import Ready

FEWEST_STEPS = 50 * ROUNDS  # shorter runs are not rehearsed; rehearsals take a few per cent of a longer run
_FACTOR = 4
_SMALLEST = 1 << 18  # bytes
_GAIN = 0.05  # smallest fraction of a round's time that counts as a gain; a smaller difference may be chance
_SLOW = 1.0  # seconds; in slower rounds the group size matters little


def group_bytes_for(
    link: FrameChannel,
    config: Config,
    scheme: Scheme,
    model: torch.nn.Module,
    ready: Mapping[int, Ready],
    *,
    steps: int,
    epoch: int,
    lr: float,
    tell: Callable[[str], None],
) -> int:
    """Return --group-bytes for a run of `steps` steps with `epoch` steps in an epoch and the learning rate `lr`.

    This is the configured size if there is one. If several ranks update weights, it is the size that the topology
    prescribes. Otherwise it is the fastest size in rehearsals. The default is used for short runs, for models that fit in
    one group, and for workers in one process, which take turns. `tell` is called with a line about the time of each size.
    """
    if config.group_by != "bytes" or config.group_bytes:
        return config.group_bytes
    answer = ready[min(ready)]
    whole = 4 * plan_for(answer, scheme, config).size
    if not is_central(config.topology):
        return group_bytes_of(config.topology, whole, len(ready))
    if config.local is not None or steps < FEWEST_STEPS or whole <= SMALL_MODEL_BYTES:
        return DEFAULT_GROUP_BYTES
    rehearsed: dict[Plan, float] = {}

    def seconds(group_bytes: int) -> float:
        plan = plan_for(answer, scheme, replace(config, group_bytes=group_bytes))
        if plan not in rehearsed:
            rehearsed[plan] = TrialRun(link, config, scheme, model, plan, ready).run(epoch, lr)
        return rehearsed[plan]

    tried: dict[int, float] = {}
    best = search(lambda size: tried.setdefault(size, seconds(size)), whole)
    tell(f"groups of {best} bytes; a step took " + ", ".join(f"{1e3 * s:.1f} ms with {size}" for size, s in tried.items()))
    return best


def search(seconds: Callable[[int], float], whole: int) -> int:
    """Return the group size in bytes with the fastest round. `whole`: the bytes of the model; `seconds` measures one size.

    Tries larger sizes than the default until a size brings no gain, and smaller sizes only if no larger size brings a gain.
    """
    best, least = DEFAULT_GROUP_BYTES, seconds(DEFAULT_GROUP_BYTES)
    if least > _SLOW:
        return best
    factors = [_FACTOR**i for i in range(1, 16)]
    larger = [best * factor for factor in factors if best * factor < _FACTOR * whole]
    smaller = [best // factor for factor in factors if best // factor >= _SMALLEST]
    for sizes in (larger, smaller):
        for size in sizes:
            if (found := seconds(size)) > (1 - _GAIN) * least:
                break
            best, least = size, found
        if best != DEFAULT_GROUP_BYTES:
            break
    return best
