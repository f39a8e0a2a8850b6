"""Bytes of every link of simulated jobs, against those of real ones that train in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from psnode.cli import main
from psnode.config.load import load
from psnode.jobs.planning import profiling
from psnode.jobs.planning.host_prices.host_costs import CoreRates
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.profiling import measure
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.simulating.simulated_job import groups_of, simulate_job
from psnode.jobs.simulating.simulated_records import step_records
from psnode.records.metrics import METRICS, SUMMARY, read_records
from psnode.worker import inspection

SCHEMES = ("dense", "signsgd")  # whose payloads have the same bytes in every step
STEPS = 3
MODEL = {
    "network": "FC",
    "dataset": "synthetic",
    "synthetic_shape": (1, 8, 8),
    "batch_size": 4,
    "threads": 1,
    "group_by": "layer",
}
OPTIONS = ["--network", "FC", "--dataset", "synthetic", "--synthetic-shape", "1,8,8", "--batch-size", "4", "--threads", "1"]


@pytest.fixture(scope="module")
def profile() -> Iterator[Profile]:
    """Measure a few steps of everything: the tests check no times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profiling, "_SECONDS", 0.02)
        patch.setattr(inspection, "unwatchable", lambda model: "")  # other tests compile models in this process
        patch.setattr(profiling, "overheads", lambda *_: {})
        patch.setattr(profiling, "core_rates", lambda *_: CoreRates(0.9, 0.95))
        yield measure(load(MODEL, {}), {name: load(MODEL | {"scheme": name}, {}) for name in SCHEMES})


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_links_carry_the_bytes_of_a_real_job(profile: Profile, scheme: str, workers: int, tmp_path: Path) -> None:
    flags = ["--scheme", scheme, "--group-by", "layer", "--max-steps", str(STEPS), "--no-tensorboard", "--quiet"]
    assert main(["train", "--local", str(workers), *OPTIONS, *flags, "--train-dir", str(tmp_path)]) == 0
    real = [(record["uplink_bytes"], record["downlink_bytes"]) for record in read_records(tmp_path / METRICS)]
    assert len(profile.schemes[scheme].groups) > 1
    job = simulate_job(profile, profile.schemes[scheme], Scenario(workers, 1e9, 0.0002, 2), load({}, {}), STEPS)
    assert [(record.uplink_bytes, record.downlink_bytes) for record in step_records(job)] == real
    up, down = (sum(each) for each in zip(*real, strict=True))
    assert (job.received[0], job.sent[0]) == (up, down)
    assert job.sent[1:] == [up / workers] * workers and job.received[1:] == [down / workers] * workers


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("topology", ["mesh", "mesh:master=auto", "sharded:servers=2", "gather", "star:down=tree"])
def test_links_carry_the_bytes_of_a_real_job_under_a_topology(
    profile: Profile, topology: str, workers: int, tmp_path: Path
) -> None:
    """Compare the bytes of every rank's link with the account in summary.json, in which a real job adds up its frames."""
    flags = ["--scheme", "dense", "--group-by", "layer", "--max-steps", str(STEPS), "--no-tensorboard", "--quiet"]
    local = ["--local", str(workers), "--topology", topology]
    assert main(["train", *local, *OPTIONS, *flags, "--train-dir", str(tmp_path)]) == 0
    config = load({"topology": topology}, {})
    groups = groups_of(profile, "dense", config, workers)
    job = simulate_job(profile, groups, Scenario(workers, 1e9, 0.0002, 2), config, STEPS)
    real = [(record["uplink_bytes"], record["downlink_bytes"]) for record in read_records(tmp_path / METRICS)]
    assert [(record.uplink_bytes, record.downlink_bytes) for record in step_records(job)] == real
    ranks = json.loads((tmp_path / SUMMARY).read_text())["link_bytes"]["ranks"]
    assert job.sent == [found["gradients_out"] + found["weights_out"] for found in ranks.values()]
    assert job.received == [found["gradients_in"] + found["weights_in"] for found in ranks.values()]
