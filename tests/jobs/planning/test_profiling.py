"""A measured profile: its bytes are those of a job, its times add up, and a file of it holds everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.cli import main
from psnode.config.load import load
from psnode.errors import ConfigurationError
from psnode.exchange.routes.topologies import routes_of
from psnode.jobs.planning import ddp_overhead, profiling
from psnode.jobs.planning.host_prices.host_costs import core_rates, socket_costs
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.profiling import measure
from psnode.jobs.planning.routing.route_lines import loads_of
from psnode.jobs.planning.routing.routed_groups import routed
from psnode.jobs.planning.scenario import GOODPUT
from psnode.plans.groups import Plan
from psnode.plans.plan_file import PlanFile
from psnode.plans.roles import Layout
from psnode.records.metrics import METRICS, read_records

MODEL = {"network": "FC", "dataset": "synthetic", "synthetic_shape": (1, 8, 8), "batch_size": 4, "threads": 1}
SCHEMES = {"dense": {"scheme": "dense"}, "topk": {"scheme": "topk"}}
OPTIONS = ["--network", "FC", "--dataset", "synthetic", "--synthetic-shape", "1,8,8", "--batch-size", "4", "--threads", "1"]
pytestmark = pytest.mark.usefixtures("few_steps")


@pytest.fixture(scope="module")
def profile(few_steps: None) -> Profile:
    used = torch.get_num_threads()
    found = measure(load(MODEL, {}), {name: load(MODEL | flags, {}) for name, flags in SCHEMES.items()})
    assert torch.get_num_threads() == used
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
def test_frames_have_the_bytes_of_a_job(profile: Profile, scheme: str, tmp_path: Path) -> None:
    """Compare the profile's bytes with those of a job. top-k's payloads of a gradient differ by the rounding of an entropy
    code.
    """
    flags = ["--scheme", scheme, "--max-steps", "4", "--no-tensorboard", "--train-dir", str(tmp_path), "--quiet"]
    assert main(["train", "--local", "1", *OPTIONS, *flags]) == 0
    record = list(read_records(tmp_path / METRICS))[-1]
    found = profile.schemes[scheme].groups
    tolerance = 0.0 if scheme == "dense" else 0.05
    assert sum(group.up for group in found) == pytest.approx(record["uplink_bytes"], rel=tolerance)
    assert sum(group.down for group in found) == pytest.approx(record["downlink_bytes"], rel=tolerance)


def test_the_host_s_costs_hold_the_ring_and_the_durations_of_passes(profile: Profile) -> None:
    host = profile.host
    assert (host.ring_turn, host.wake, host.ring_byte) == (1e-4, 2e-4, 3e-10)
    assert (host.crowded, host.turns) == (0.9, 0.95)
    assert 5 <= len(host.durations) <= 99
    assert np.median(host.durations) == pytest.approx(profile.passes)


def test_durations_of_steps_are_sums_over_their_batches() -> None:
    """Compare with the measured ones for one batch, and with the mean and the variance of a sum for nine."""
    taken = list(np.random.default_rng(1).gamma(4.0, 1.0, 80))
    assert profiling._of_steps(taken, 1) == pytest.approx(sorted(taken))
    found = profiling._of_steps(taken, 9)
    assert len(found) == 80
    assert np.mean(found) == pytest.approx(9 * np.mean(taken), rel=0.02)
    assert np.var(found) == pytest.approx(9 * np.var(taken), rel=0.15)
    many = list(np.random.default_rng(2).choice([1.0, 3.0], 500))  # the median lies at a jump
    assert len(profiling._of_steps(many, 1)) == 99
    assert np.median(profiling._of_steps(many, 1)) == np.median(many)


def test_disturbances_of_groups_are_not_counted_as_other_work() -> None:
    """Check that disturbances do not count as other work if each of five steps disturbs a different group: the sum of the
    groups' medians is then not the sum of any step.
    """
    spans, handled, served = list[dict[str, Any]](), [0.0], list[float]()
    for step in range(5):
        seconds = [0.1 + (group == step) for group in range(5)]
        spans += [{"name": "decode", "dur": 1e6 * each, "args": {"group": group}} for group, each in enumerate(seconds)]
        spans += [{"name": "apply", "dur": 1e6, "args": {"group": 0}}, {"name": "decode", "dur": 1e6, "args": {}}]
        handled.append(profiling._handled(spans))
        served.append(sum(seconds) + 0.006)
    assert profiling._bookkeeping(served, handled, 6) == pytest.approx(0.001)
    assert profiling._bookkeeping([0.1], [0.0, 0.2], 6) == 0  # groups on several lanes


def test_a_machine_that_slows_down_adds_nothing_to_a_scheme() -> None:
    """Check that the seconds of a scheme do not grow if the machine becomes slower by half during the measurement, and is
    disturbed in one step.
    """
    passes = [1 + step / 12 for step in range(7)]
    taken = [seconds + 0.2 + (step == 3) for step, seconds in enumerate(passes)]
    assert profiling._added(taken, passes, 0.2) == pytest.approx(0)
    assert profiling._added(taken, passes, 0.1) == pytest.approx(0.1)
    assert profiling._added(taken, passes, 0.5) == 0


def test_a_machine_that_slows_down_adds_nothing_to_ddp() -> None:
    """Check that DDP's 30 ms per step are found if every step takes 50 ms longer than the one before."""
    seconds = list[float]()

    def alone() -> float:
        seconds.append(0.05 * (len(seconds) + 1))
        return seconds[-1]

    assert ddp_overhead._added(lambda: 0.05 * len(seconds) + 0.03, alone, 0.5) == pytest.approx(0.03)
    assert len(seconds) == 5  # .9 s in sum
    assert ddp_overhead._added(lambda: 0.05 * len(seconds) + 0.03, alone, 4.0) == pytest.approx(0.03)
    assert len(seconds) == 13  # eight more, of 4.04 s in sum


@pytest.mark.parametrize("scheme", SCHEMES)
def test_groups_routes_and_bytes_where_every_worker_has_a_part_are_those_of_a_job(
    profile: Profile, scheme: str, tmp_path: Path
) -> None:
    """Compare groups, routes and bytes with a job of three workers in a mesh: each sends gradients to the other two and gets
    weights from them; reports have a few hundred bytes.

    Payloads of top-k differ by their entropy code, and those of small groups were not measured.
    """
    flags = ["--scheme", scheme, "--max-steps", "4", "--no-tensorboard", "--train-dir", str(tmp_path), "--quiet"]
    assert main(["train", "--local", "3", "--topology", "mesh", *OPTIONS, *flags]) == 0
    found = routed(profile, scheme, "mesh", 3)
    plan = Plan.from_dict(json.loads((tmp_path / "config.json").read_bytes())["plan"])
    assert Plan.from_dict(found.costs.plan) == plan
    assert found.routes == routes_of(Layout(3), plan, "mesh")
    record, loads = list(read_records(tmp_path / METRICS))[-1], loads_of(found)
    tolerance = 1e-3 if scheme == "dense" else 0.15
    assert sum(load.gradients_out for load in loads) == pytest.approx(record["uplink_bytes"], rel=tolerance)
    assert sum(load.weights_in for load in loads) == pytest.approx(record["downlink_bytes"], rel=tolerance)


def test_a_codec_of_the_options_is_that_of_their_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that --codec in the model's options applies only to the row of these options. The other rows are the schemes
    that they are named after.
    """
    seen: dict[str, Any] = {}

    def measure(config: Any, schemes: Any, tell: Any, *, ranks: int) -> Profile:
        seen.update(schemes, ranks=ranks)
        raise ConfigurationError("enough")

    monkeypatch.setattr(profiling, "measure", measure)
    own = ["--codec", "topk:ratio=0.1", "--feedback", "ef", "--optimizer", "adamw", "--lr", "0.5"]
    assert main(["plan", "-n", "3", "--one-machine", "--scheme", "qsgd --downlink dense", "--", *OPTIONS, *own]) == 2
    assert seen.pop("ranks") == 4  # three workers and the master share the machine
    assert list(seen) == ["topk:ratio=0.1", "dense", "bf16", "qsgd --downlink dense"]
    coded = {name: (config.codec, config.feedback, config.downlink) for name, config in seen.items()}
    assert coded["topk:ratio=0.1"] == ("topk:ratio=0.1", "ef", None)
    assert coded["dense"] == coded["bf16"] == (None, None, None)
    assert coded["qsgd --downlink dense"] == (None, None, "dense")
    assert {(config.optimizer, config.lr, config.batch_size) for config in seen.values()} == {("adamw", 0.5, 4)}


def test_times_are_ordered_and_add_up(profile: Profile) -> None:
    assert 0 < profile.forward < profile.passes
    ready = [tensor.ready for tensor in profile.tensors]
    assert ready == sorted(ready)
    assert ready[-1] == pytest.approx(profile.backward)
    assert all(0 <= tensor.needed <= profile.forward for tensor in profile.tensors)
    sizes = [64 * 800, 800, 800 * 500, 500, 500 * 10, 10]
    assert sorted(tensor.nbytes for tensor in profile.tensors) == sorted(4 * size for size in sizes)
    for costs in profile.schemes.values():
        assert all(min(group.encode, group.apply, group.decode, group.update) > 0 for group in costs.groups)
    assert [costs.lossy for costs in profile.schemes.values()] == [False, True]


def test_a_saved_profile_is_the_profile(profile: Profile, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "profile.json"
    kept = replace(profile, hardware={"cpu": "a processor"})
    kept.save(file)
    assert Profile.load(file) == kept


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99}', '{"format": 1, "schemes": {"a": 1}}'])
def test_a_file_that_is_no_profile_is_refused_by_name(content: str, tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=r"profile\.json holds no profile"):
        Profile.load(file)


def test_neighbours_end_with_the_measurement() -> None:
    import multiprocessing

    cores = os.sched_getaffinity(0)
    rates = core_rates(lambda: sum(range(20_000)), 0.1)
    assert all(0 < rate <= 1 for rate in rates)
    assert os.sched_getaffinity(0) == cores
    assert not multiprocessing.active_children()


def test_bytes_through_tcp_cost_processor_time_at_both_ends() -> None:
    assert min(socket_costs()) > 0


def test_the_passes_have_the_threads_that_training_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the number of threads during the measurement: the ranks of a host divide its cores, unless --threads is set."""
    monkeypatch.setattr(profiling, "usable_cores", lambda: 6)
    auto = {**MODEL, "threads": 0}
    assert measure(load(auto, {}), {}, ranks=3).threads == 2
    assert measure(load(MODEL, {}), {}, ranks=3).threads == 1


def rows(result: dict[str, Any]) -> dict[str, float]:
    return {row["name"]: row["seconds"] for row in result["results"][0]["rows"]}


@pytest.mark.long
def test_the_command_measures_and_a_saved_profile_answers_what_if(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.json"
    asked = ["plan", "-n", "2", "--rate", "1mbit", "--scheme", "topk", "--save-profile", str(file)]
    command = [sys.executable, "-m", "psnode", *asked, "--", *OPTIONS]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "compress: " in shown.stdout
    assert "measuring passes" in shown.stderr
    assert {"polar-2bit", "dense", "bf16", "topk"} <= {line.split()[0] for line in shown.stdout.splitlines() if line}
    assert max(map(len, shown.stdout.splitlines()[:12])) <= 80
    results = []
    for workers in ("2", "16"):
        assert main(["plan", "-n", workers, "--rate", "1mbit", "--profile", str(file), "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    few, many = map(rows, results)
    nbytes = sum(tensor.nbytes for tensor in Profile.load(file).tensors)
    for found, count in ((few, 2), (many, 16)):  # the master's link carries all gradients, and all weights the other way
        assert count * nbytes * 8 / 1e6 < found["dense"] < 2 * count * nbytes * 8 / 1e6 / GOODPUT + 1
    assert many["DDP fp32"] / few["DDP fp32"] == pytest.approx((2 * 15 / 16) / (2 / 2), rel=0.05)


def test_the_plan_of_the_best_scheme_is_saved_with_its_prediction(
    profile: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that dense is saved: topk would be faster, but the record of losses speaks against it."""
    profile.save(tmp_path / "profile.json")
    asked = ["plan", "-n", "2", "--rate", "1mbit", "--profile", str(tmp_path / "profile.json")]
    assert main([*asked, "--save-plan", str(tmp_path / "plan.json"), "--json"]) == 0
    best = rows(json.loads(capsys.readouterr().out))
    found = PlanFile.load(tmp_path / "plan.json")
    assert best["topk"] < best["dense"]
    assert found.settings == {"scheme": "dense"}
    assert found.plan.to_dict() == profile.schemes["dense"].plan
    assert found.prediction is not None
    assert (found.prediction.step, found.prediction.workers) == (best["dense"], 2)
    assert main(["train", *OPTIONS, "--local", "2", "--dry-run", "--plan", str(tmp_path / "plan.json")]) == 0
    assert main([*asked, "--rate", "1gbit", "--save-plan", str(tmp_path / "plan.json")]) == 2
    assert "--save-plan needs one --rate" in capsys.readouterr().err
    old = {name: replace(costs, plan={}) for name, costs in profile.schemes.items()}
    replace(profile, schemes=old).save(tmp_path / "profile.json")
    assert main([*asked, "--save-plan", str(tmp_path / "plan.json")]) == 2
    assert "an earlier version wrote it: measure again" in capsys.readouterr().err


def test_the_parts_of_an_explained_step_add_up_to_it(
    profile: Profile, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile.save(tmp_path / "profile.json")
    assert main(["plan", "-n", "3", "--rate", "1mbit", "--profile", str(tmp_path / "profile.json"), "--explain"]) == 0
    shown = capsys.readouterr().out
    steps, _, parts = shown.partition("of the step, in ms")
    for name in SCHEMES:
        [step] = [line.split() for line in steps.splitlines() if line.split()[:1] == [name]]
        [spent] = [line.split()[1:] for line in parts.splitlines() if line.split()[:1] == [name]]
        seconds = float(step[1].replace(",", "")) * {"s": 1.0, "ms": 1e-3}[step[2]]
        assert sum(map(float, spent)) == pytest.approx(1e3 * seconds, rel=0.01)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rate", "fast"], "--rate must be a number above 0 with kbit, mbit or gbit"),
        (["--profile", "none.json"], "--profile none.json holds no profile"),
        (["--profile", "none.json", "--scheme", "topk"], "--profile measures nothing"),
        (["--scheme", "nothing"], "nothing"),
        (["--", "--consistency", "asp", *OPTIONS], "one behind the other"),
        (["--", "--plan", "auto", *OPTIONS], "--plan has no meaning in the options of train"),
    ],
)
def test_mistakes_are_told_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-n", "2", *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("measuring")]
    assert len(lines) == 1
    assert said in lines[0]


def test_earlier_batches_of_a_step_count_as_passes_in_which_nothing_is_sent(profile: Profile) -> None:
    """Check three batches per step: before the last backward pass come three forward and two backward passes; the bytes are
    those of one gradient.
    """
    many = measure(load(MODEL | {"batches_per_step": 3}, {}), {"dense": load(MODEL | SCHEMES["dense"] | {"local": 2}, {})})
    once = many.tensors[0].ready / many.backward  # the gradient that is finished first keeps its place in the backward pass
    assert 0 < once < 1
    assert many.forward > 2 * many.backward
    assert max(tensor.needed for tensor in many.tensors) <= (many.forward - 2 * many.backward) / 3
    assert many.schemes["dense"].groups[0].up == profile.schemes["dense"].groups[0].up
