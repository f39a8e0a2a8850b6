"""Measurements of a few steps, for tests that check no times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from psnode.jobs.planning import profiling
from psnode.jobs.planning.ddp_step import HOOKS
from psnode.jobs.planning.host_prices.gloo_costs import RingCosts
from psnode.jobs.planning.host_prices.host_costs import CoreRates
from psnode.jobs.planning.host_prices.mpi_costs import FrameCosts
from psnode.worker import inspection

RING = RingCosts(1e-4, 2e-4, 3e-10)


@pytest.fixture(scope="module")
def few_steps() -> Iterator[None]:
    """Make measurements take a few steps of everything.

    Other tests may have compiled models or left threads in this process. So nothing is measured in forks of it, and it joins
    no process group.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiling, "_SECONDS", 0.02)
        patch.setattr(inspection, "unwatchable", lambda model: "")
        patch.setattr(profiling, "overheads", lambda *_: dict.fromkeys(HOOKS, 0.001))
        patch.setattr(profiling, "core_rates", lambda *_: CoreRates(0.9, 0.95))
        patch.setattr(profiling, "frame_costs", FrameCosts)
        patch.setattr(profiling, "ring_costs", lambda: RING)
        yield
