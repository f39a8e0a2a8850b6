"""The study of --plan auto: the ratio that it reports, and its page."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from psnode.jobs.planning import profiling
from psnode.jobs.planning.host_prices.gloo_costs import RingCosts
from psnode.jobs.planning.host_prices.host_costs import CoreRates
from psnode.jobs.planning.host_prices.mpi_costs import FrameCosts
from psnode.jobs.planning.search.ways import MERGECOMP, SECOPA
from psnode.plans.plan_file import PlanFile
from psnode.tasks.models import build
from studies import choices
from studies.choices import STUDY, Options, slower
from studies.harness import page


def test_a_choice_is_compared_with_the_fastest_of_the_others() -> None:
    measured = {"a": [3.0, 1.0, 2.0], "b": [1.5, 9.0, 1.4], "best groups": [1.0], "--plan auto": [1.65, 1.6, 7.0]}
    assert slower(measured, ("a", "b")) == pytest.approx(1.65 / 1.5)
    assert slower({"a": [2.0], "--plan auto": [1.0]}, ("a",)) == pytest.approx(0.5)


def test_every_contender_is_measured_in_every_round_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[dict[str, Any]] = []

    def run_trial(contender: Any, shared: Any, **options: Any) -> Any:
        assert (shared.workers, shared.network, shared.steps, options["rate"]) == (3, "FC", 7, "1gbit")
        flags.append(contender.settings)
        return SimpleNamespace(steps=(0.2, 0.1, 0.4) if "plan" in contender.settings else (0.3,))

    monkeypatch.setattr(choices, "run_trial", run_trial)
    found = choices.measure(Options(network=("FC",), rate=("1gbit",), workers=3, scheme="qsgd", steps=2, rounds=2))
    assert flags == [*({"scheme": name} for name in ("qsgd", "bf16", "dense")), {"scheme": "qsgd", "plan": "auto"}] * 2
    [row] = found.rows
    assert row["slower"] == pytest.approx(2 / 3)
    result = {"date": "today", "cpu": "a processor", "cores": 2, "rounds": 2, "steps": 2, "rows": found.rows}
    assert "0.667" in page(STUDY, result)


def test_plans_of_searches_and_papers_are_contenders_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that every plan is one that a run accepts, of the network and of the scheme, or of dense if no group is coded."""
    monkeypatch.setattr(profiling, "_SECONDS", 0.01)
    monkeypatch.setattr(profiling, "overheads", lambda *_: {})  # would fork this process
    monkeypatch.setattr(profiling, "core_rates", lambda *_: CoreRates(0.9, 0.95))
    monkeypatch.setattr(profiling, "frame_costs", FrameCosts)
    monkeypatch.setattr(profiling, "ring_costs", RingCosts)
    monkeypatch.setattr(choices, "rehearse", lambda search, ways, listed: listed)
    seen = list[PlanFile]()  # in the order of the contenders: the best groups, MergeComp, SeCoPa

    def run_trial(contender: Any, shared: Any, **options: Any) -> Any:
        plan = contender.settings.get("plan", "rule")
        if plan not in ("rule", "auto"):
            seen.append(PlanFile.load(Path(plan)))
        return SimpleNamespace(steps=(0.3,))

    monkeypatch.setattr(choices, "run_trial", run_trial)
    options = Options(network=("FC",), rate=("10mbit",), scheme="qsgd", batch=4, steps=2, rounds=1, groups=True)
    [row] = choices.measure(options).rows
    assert list(row["measured"]) == ["qsgd", "bf16", "dense", "best groups", MERGECOMP, SECOPA, "--plan auto"]
    predicted = [plan.prediction.step for plan in seen if plan.prediction is not None]
    assert len(predicted) == 3
    assert predicted[0] == min(predicted)
    assert all(plan.settings in ({"scheme": "qsgd"}, {"scheme": "dense"}) for plan in seen)
    names = {name for name, _ in build("FC", (1, 28, 28), 10).named_parameters()}
    assert [set(plan.plan.slices()) for plan in seen] == [names] * len(seen)
