"""Seconds that PyTorch's DistributedDataParallel adds to the passes of a process that is alone in its job."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from psnode.jobs.planning.ddp_hooks import Communication, wrap
from psnode.jobs.planning.host_prices.host_costs import median_seconds

if TYPE_CHECKING:
    from psnode.jobs.planning.step_rigs import TimedModel

# The last process group. It is kept after its use, because a thread of gloo holds a reference to it until its last operation is
# released. If that thread dropped the last reference, the thread would wait for its own end, and the process would abort
# ("Resource deadlock avoided").
_kept: list[object] = []
_WARMUP = 4  # DDP orders its buckets anew after the first step, and PowerSGD begins in the third


def overheads(ground: TimedModel, hooks: Sequence[str], alone: float, seconds: float) -> dict[str, float]:
    """Return the seconds by hook. `alone`: the seconds of the passes without DDP. Each hook is measured for at least `seconds`.

    The result is empty if this process already has a process group, or if torch was built without process groups. Hooks under
    which DDP does not train the model are left out.
    """
    from torch import distributed

    if not distributed.is_available() or distributed.is_initialized():
        return {}
    found = {}
    with lone_group():
        for hook in hooks:
            # DDP refuses some models and losses that psnode trains: parameters without gradients, methods of the model, scalars
            with contextlib.suppress(Exception):
                found[hook] = max(0.0, _step(ground, hook, seconds) - alone)
    return found


@contextlib.contextmanager
def lone_group() -> Iterator[None]:
    """Make a process group of gloo that contains this process alone. It is kept after its use, until the next one is made."""
    from torch import distributed

    distributed.init_process_group("gloo", store=vars(distributed)["HashStore"](), rank=0, world_size=1)
    _kept[:] = [vars(distributed)["group"].WORLD]
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _step(ground: TimedModel, hook: str, seconds: float) -> float:
    model = wrap(ground.model().to(ground.device), Communication.parse(hook))
    computation, steps = ground.computation(model), itertools.count(1)

    def step() -> None:
        computation.run(next(steps), [ground.batch], None)
        ground.settle()
        model.zero_grad()

    return median_seconds(step, seconds, _WARMUP)
