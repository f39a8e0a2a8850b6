"""Measured steps compared with their predictions: the draw of situations, the cells that are measured, and the figures of the
errors.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from psnode.bench.contest.contenders import Ddp, Psnode
from psnode.errors import ConfigurationError, TransportError
from psnode.jobs.planning.forecast import Forecast
from studies import predictions
from studies.harness import page
from studies.predictions import STUDY, Options, Situation, drawn, regrets, within


def test_a_draw_is_a_part_of_all_situations_and_the_same_for_a_seed() -> None:
    every = drawn(Options(situations=0))
    assert len(every) == len(set(every)) == 3 * 4 * 3
    some = drawn(Options(situations=16, seed=5))
    assert some == drawn(Options(situations=16, seed=5)) != drawn(Options(situations=16, seed=6))
    assert len(set(some)) == 16
    assert set(some) <= set(every)


def row(name: str, predicted: float, measured: float, workers: int = 2) -> dict[str, Any]:
    off = predicted / measured - 1
    return {
        "network": "N",
        "rate": "1gbit",
        "workers": workers,
        "name": name,
        "predicted": predicted,
        "measured": [measured],
        "off": off,
    }


def test_errors_are_counted_whatever_their_sign() -> None:
    rows = [row("a", 1 + 0.01 * k * (-1) ** k, 1.0) for k in range(1, 11)]
    assert within(rows) == pytest.approx({"median": 0.055, "most": 0.09, "worst": 0.10})
    with pytest.raises(ConfigurationError, match="--most"):
        within([])


def test_a_choice_costs_its_measured_step_over_that_of_the_best() -> None:
    rows = [row("a", 1.0, 1.5), row("b", 1.1, 1.2), row("c", 2.0, 3.0), row("a", 1.0, 1.0, 4), row("b", 1.2, 1.1, 4)]
    assert regrets(rows) == pytest.approx([1.25, 1.0])


def test_cells_that_take_too_long_and_jobs_that_fail_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_trial(contender: Any, shared: Any, **options: Any) -> Any:
        assert (shared.workers, shared.network, shared.steps, options["rate"]) == (2, "FC", 15, "none")
        if contender.label.name == "psnode qsgd":
            raise TransportError("the job failed")
        return SimpleNamespace(steps=(0.2, 0.1, 0.4))

    def forecasts(profile: Any, scenario: Any, topologies: Any) -> list[Forecast]:
        assert topologies == ("star",)
        assert (scenario.workers, scenario.rate, scenario.shared) == (2, None, True)
        return [
            Forecast(name, seconds, {}, 0.0, "link", 1, peer=name.startswith("DDP"))
            for name, seconds in (("DDP fp32", 0.1), ("dense", 9.0), ("qsgd", 0.1))
        ]

    monkeypatch.setattr(predictions, "run_trial", run_trial)
    monkeypatch.setattr(predictions, "forecasts", forecasts)
    monkeypatch.setattr(predictions, "profile_of", lambda network, schemes: SimpleNamespace(passes=0.05))
    options = Options(("FC",), ("none",), (2,), ("dense", "qsgd"), ("fp32",), rounds=2)
    found = predictions.measure(options)
    assert [(each["name"], each["measured"], each["off"]) for each in found.rows] == [
        ("DDP fp32", [0.2, 0.2], pytest.approx(-0.5))
    ]
    shown = page(STUDY, {"date": "today", "cpu": "a processor", "cores": 2, "rounds": 2, "steps": 10, "rows": found.rows})
    assert "| FC | none | 2 | DDP fp32 | 100.0 | 200.0 | -50.0 | link |" in shown
    assert STUDY.passed({"rows": found.rows}) is False
    assert STUDY.passed({"rows": [row("a", 1.04, 1.0)]}) is True


def test_a_situation_is_told_by_its_parts() -> None:
    assert Situation("LeNet", "none", 2)._asdict() == {"network": "LeNet", "rate": "none", "workers": 2}


def test_every_forecast_of_a_scheme_is_measured_under_its_topology_and_the_hooks_are_those_of_the_options() -> None:
    def forecast(name: str, topology: str = "star", *, peer: bool = False) -> Forecast:
        return Forecast(name, 1.0, {}, 0.0, "link", 1, topology=topology, peer=peer)

    expected = [forecast("topk", "mesh"), forecast("DDP fp32", peer=True), forecast("dense"), forecast("DDP fp16", peer=True)]
    found = predictions.contenders_of(Options(ddp=("fp32",)), expected)
    assert [(each.label, contender) for each, contender in found] == [
        ("topk under --topology mesh", Psnode("topk --topology mesh")), ("DDP fp32", Ddp("fp32")), ("dense", Psnode("dense")),
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="counts passed-on bytes twice"):
        list(predictions.contenders_of(Options(), [forecast("dense", "star:down=tree")]))
