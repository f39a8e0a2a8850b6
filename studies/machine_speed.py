"""The changing speed of a machine that others use too: passes of a model, timed repeatedly, and profiles at another speed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from psnode.config import Config
from psnode.jobs.planning.host_prices.host_costs import median_seconds
from psnode.jobs.planning.profile import Profile, with_longer_passes
from psnode.jobs.planning.step_rigs import Alone, TimedModel
from psnode.tasks.loading import make_task

_SECONDS, _WARMUP = 0.5, 3


class RepeatedPasses:
    """The forward and backward pass of the model that `config` trains, on one batch, in one thread."""

    def __init__(self, config: Config) -> None:
        with _one_thread():
            cpu = torch.device("cpu")
            self._alone = Alone(TimedModel(make_task(config), config.batch_size, cpu, coded_there=False, seed=config.seed))

    def seconds(self) -> float:
        """Return the median seconds of a pass at this time."""
        with _one_thread():
            return median_seconds(self._alone.step, _SECONDS, _WARMUP)


@contextmanager
def _one_thread() -> Iterator[None]:
    used = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(used)


def slowed(profile: Profile, slowdown: float) -> Profile:
    """Return `profile` with `slowdown` times the seconds for all work of processors. Waits do not change."""
    host, prices = profile.host, ("send", "receive", "message", "add", "mpi", "ring_turn", "ring_byte")
    names = ("encode", "apply", "decode", "update", "ready", "needed")
    schemes = {
        name: replace(
            scheme,
            groups=tuple(replace(group, **{each: slowdown * getattr(group, each) for each in names}) for group in scheme.groups),
            bookkeeping=slowdown * scheme.bookkeeping,
            extra=slowdown * scheme.extra,
            fixed=replace(scheme.fixed, **{each: slowdown * getattr(scheme.fixed, each) for each in names[:4]}),
        )
        for name, scheme in profile.schemes.items()
    }
    return replace(
        with_longer_passes(profile, slowdown),
        optimizer=slowdown * profile.optimizer,
        host=replace(host, **{each: slowdown * getattr(host, each) for each in prices}),
        schemes=schemes,
        ddp={hook: slowdown * seconds for hook, seconds in profile.ddp.items()},
    )
