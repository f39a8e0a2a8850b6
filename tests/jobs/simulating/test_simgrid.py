"""Simulated synchronous jobs, and predicted steps, against the same jobs on SimGrid, where Debian's python3-simgrid is installed.

SimGrid (H. Casanova et al., J. Parallel Distrib. Comput. 74, 2014) shares links among flows by its own solver.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnode.config.load import load
from psnode.jobs.planning.job_step import job_step
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.jobs.planning.scenario import GOODPUT, Scenario
from psnode.jobs.simulating.simulated_job import Disturbances, simulate_job

PYTHON = "/usr/bin/python3"  # Debian's, whose modules no virtual environment sees
STAR = Path(__file__).with_name("simgrid_star.py")
FREE = HostCosts(0.0, 0.0, 0.0, 0.0, 64, 1.0)
STEPS, FORWARD, BACKWARD = 8, 0.1, 0.2


@pytest.fixture(scope="module", autouse=True)
def simgrid() -> None:
    if not Path(PYTHON).exists() or subprocess.run([PYTHON, "-c", "import simgrid"], capture_output=True).returncode:
        pytest.skip("Debian's python3-simgrid is not installed")


def ends(workers: int, rate: float, groups: list[dict[str, Any]]) -> list[float]:
    """Return the times at which versions are complete on SimGrid. `rate`: bytes per second of every link."""
    job = {"workers": workers, "rate": rate, "steps": STEPS, "forward": FORWARD, "backward": BACKWARD, "groups": groups}
    done = subprocess.run([PYTHON, str(STAR), json.dumps(job)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("megabytes", [0.2, 2.0])
def test_steps_of_a_star_are_those_on_simgrid(workers: int, count: int, megabytes: float) -> None:
    """Compare all steps of a simulated job, and the predicted step, for groups of random sizes. `megabytes`: their mean."""
    chance = np.random.default_rng((workers, count, int(10 * megabytes)))
    ready, needed = sorted(chance.uniform(0, BACKWARD, count)), sorted(chance.uniform(0, FORWARD, count), reverse=True)
    groups = [
        {
            "ready": float(first), "needed": float(use),
            **{name: int(chance.uniform(0, 2e6 * megabytes)) for name in ("up", "down")},
            **{name: float(chance.uniform(0, 0.01)) for name in ("encode", "apply", "update")},
        }
        for first, use in zip(ready, needed, strict=True)
    ]  # fmt: skip
    found = ends(workers, 1e7, groups)
    costs = SchemeCosts(
        tuple(replace(GroupCosts(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), **group) for group in groups), 0.0, 0.0, True
    )
    profile = Profile("model", 1, FORWARD, BACKWARD, 0.0, (TensorTimes((1000, 1000), BACKWARD, 0.0),), FREE, {}, {})
    scenario = Scenario(workers, 8e7 / GOODPUT, 0.0, 64)
    job = simulate_job(profile, costs, scenario, load({"aggregate_order": "arrival"}, {}), STEPS, Disturbances())
    assert list(itertools.accumulate(job.step_times)) == pytest.approx(found, rel=1e-6)
    assert job_step(profile, costs, scenario).seconds == pytest.approx(found[-1] - found[-2], rel=1e-6)
