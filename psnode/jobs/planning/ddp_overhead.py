"""Seconds that PyTorch's DistributedDataParallel adds to the passes of a process that is alone in its job."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from psnode.jobs.planning.ddp_hooks import Communication, wrap

if TYPE_CHECKING:
    from psnode.jobs.planning.step_rigs import TimedModel

# The last process group. It is kept after its use, because a thread of gloo holds a reference to it until its last operation is
# released. If that thread dropped the last reference, the thread would wait for its own end, and the process would abort
# ("Resource deadlock avoided").
_kept: list[object] = []
_PAIRS = 5  # minimum number of pairs of steps
_WARMUP = 4  # DDP orders its buckets anew after the first step, and PowerSGD begins in the third


def overheads(ground: TimedModel, hooks: Sequence[str], alone: Callable[[], float], seconds: float) -> dict[str, float]:
    """Return, for each of `hooks`, the seconds that DDP under this hook adds to a step.

    `alone` runs the passes of a step without DDP and returns their seconds. Each step under a hook follows a step without
    DDP, so that a change of the machine's speed affects both. Each hook is measured for at least `seconds`. The result is
    empty if this process already has a process group, or if torch was built without process groups. Hooks under which DDP
    does not train the model are left out.
    """
    from torch import distributed

    if not distributed.is_available() or distributed.is_initialized():
        return {}
    found = {}
    with lone_group():
        for hook in hooks:
            # DDP refuses some models and losses that psnode trains: parameters without gradients, methods of the model, scalars
            with contextlib.suppress(Exception):
                found[hook] = max(0.0, _added(_under(ground, hook), alone, seconds))
    return found


@contextlib.contextmanager
def lone_group() -> Iterator[None]:
    """Make a process group of gloo that contains only this process, and destroy it when the context ends.

    A reference to the group is kept until the next group is made.
    """
    from torch import distributed

    distributed.init_process_group("gloo", store=vars(distributed)["HashStore"](), rank=0, world_size=1)
    _kept[:] = [vars(distributed)["group"].WORLD]
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _under(ground: TimedModel, hook: str) -> Callable[[], float]:
    """Return a function that takes a step under DDP and returns its seconds."""
    from psnode.jobs.planning.step_rigs import Alone

    return Alone(ground, wrap(ground.model().to(ground.device), Communication.parse(hook))).step


def _added(under: Callable[[], float], alone: Callable[[], float], seconds: float) -> float:
    """Return the median of the seconds that a step of `under` takes longer than the step of `alone` before it.

    Both functions take a step and return its seconds.
    """
    for _ in range(_WARMUP):
        under()
    taken, added = 0.0, list[float]()
    while len(added) < _PAIRS or taken < seconds:
        before, step = alone(), under()
        taken += step
        added.append(step - before)
    return statistics.median(added)
