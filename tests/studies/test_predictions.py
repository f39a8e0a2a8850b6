"""Measured steps compared with their predictions: the draw of situations, the cells that are measured, and the figures of the
errors.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from psnode.bench.contest.contenders import Ddp, Psnode
from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError, TransportError
from psnode.jobs.planning.forecast import Forecast
from studies import predictions
from studies.harness import page, run
from studies.predictions import STUDY, Options, Situation, drawn, regrets, verdict_regrets, within


def _span(rank: int, name: str, start: float, stop: float, **facts: int) -> dict[str, Any]:
    return {"ph": "X", "pid": rank, "tid": 1, "name": name, "ts": 1e6 * start, "dur": 1e6 * (stop - start), "args": facts}


# from step 5 on, a step of ten seconds has passes of two seconds, a gradient on its way for one, and an update of seven
SPANS = [
    span
    for step in range(5, 9)
    for span in (
        _span(1, "forward_backward", 10 * step, 10 * step + 2, step=step),
        _span(0, "decode", 10 * step + 3, 10 * step + 3.1, sender=1, version=step),
        _span(0, "update", 10 * step + 3.1, 10 * step + 10, version=step),
    )
]


def test_a_draw_is_a_part_of_all_situations_and_the_same_for_a_seed() -> None:
    every = drawn(Options(situations=0))
    assert len(every) == len(set(every)) == 4 * 4 * 3
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


def test_the_verdict_costs_the_measured_step_of_what_it_names_over_that_of_the_best_it_could_name() -> None:
    """Check a verdict for a scheme that is 1 % slower but loses nothing, beside a doubtful one; a verdict to compress; and one
    for the star, which is predicted to be 1 % slower than a mesh.
    """
    star = {"lossy": True, "doubtful": False, "topology": "star"}
    exact, coded, doubtful = star | {"lossy": False}, star, star | {"doubtful": True}
    rows = [
        row("dense", 1.0, 1.1) | exact, row("qsgd", 0.99, 0.8) | coded, row("x", 0.5, 0.5) | doubtful,
        row("dense", 1.0, 0.7, 4) | exact, row("qsgd", 0.5, 0.6, 4) | coded,
        row("qsgd under --topology mesh", 0.5, 0.6, 6) | coded | {"topology": "mesh"}, row("qsgd", 0.505, 0.9, 6) | coded,
    ]  # fmt: skip
    assert verdict_regrets(rows) == pytest.approx([1.1 / 0.8, 1.0, 0.9 / 0.6])


def test_cells_that_take_too_long_and_jobs_that_fail_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_trial(contender: Any, shared: Any, **options: Any) -> Any:
        assert (shared.workers, shared.network, shared.steps, options["rate"]) == (2, "FC", 15, "none")
        if contender.label.name == "psnode qsgd --timeline true":
            raise TransportError("the job failed")
        if contender.label.name == "psnode bf16 --timeline true":
            (options["folder"] / "run").mkdir()
            (options["folder"] / "run" / "timeline.json").write_text(to_json({"traceEvents": SPANS}))
        return SimpleNamespace(steps=(0.2, 0.1, 0.4))

    def forecasts(profile: Any, scenario: Any, topologies: Any) -> list[Forecast]:
        assert topologies == ("star",)
        assert (scenario.workers, scenario.rate, scenario.shared) == (2, None, True)
        return [
            Forecast(name, seconds * profile.passes / 0.05, {"link": 0.5}, 0.0, "link", 1, peer=name.startswith("DDP"))
            for name, seconds in (("DDP fp32", 0.1), ("dense", 9.0), ("qsgd", 0.1), ("bf16", 0.18))
        ]

    monkeypatch.setattr(predictions, "run_trial", run_trial)
    monkeypatch.setattr(predictions, "forecasts", forecasts)
    monkeypatch.setattr(predictions, "profile_of", lambda network, schemes: SimpleNamespace(passes=0.05))
    monkeypatch.setattr(predictions, "RepeatedPasses", lambda config: SimpleNamespace(seconds=lambda: 0.06))
    monkeypatch.setattr(predictions, "slowed", lambda profile, longer: SimpleNamespace(passes=longer * profile.passes))
    options = Options(("FC",), ("none",), (2,), ("dense", "qsgd", "bf16"), ("fp32",), rounds=2)
    kept = list[dict[str, Any]]()
    found = run(STUDY, options, kept.append)
    assert [(each["name"], each["measured"], each["off"], each["waited"]) for each in found["rows"]] == [
        ("DDP fp32", [0.2, 0.2], pytest.approx(-0.5), None),
        ("bf16", [0.2, 0.2], pytest.approx(-0.1), "master"),
    ]
    assert [len(each["rows"]) for each in kept] == [1, 2]
    assert found["floors"] == kept[0]["floors"] == {"FC": 0.05}
    shown = page(STUDY, found)
    assert "| FC | none | 2 | DDP fp32 | 100.0 | 200.0 | -50.0 | 1.20 | -40.0 | messages |  |" in shown
    assert "| FC | none | 2 | bf16 | 180.0 | 200.0 | -10.0 | 1.20 | +8.0 | messages | master |" in shown
    assert "At the machine's speed beside each cell: median 24.0 %, nine of ten cells within 40.0 %, worst 40.0 %." in shown
    assert "Schemes of psnode: median 10.0 %, nine of ten cells within 10.0 %, worst 10.0 %. Hooks of DDP: median 50.0 %" in shown
    assert "predicted correctly in 0 of 1 cells" in shown
    assert "Named by the verdict, over the best: worst 1.000." in shown
    assert STUDY.passed(found) is False
    assert STUDY.passed({"rows": [row("a", 1.04, 1.0)]}) is True


def test_a_situation_is_told_by_its_parts() -> None:
    assert Situation("LeNet", "none", 2)._asdict() == {"network": "LeNet", "rate": "none", "workers": 2}


def test_every_forecast_of_a_scheme_is_measured_under_its_topology_and_the_hooks_are_those_of_the_options() -> None:
    def forecast(name: str, topology: str = "star", *, peer: bool = False) -> Forecast:
        return Forecast(name, 1.0, {}, 0.0, "link", 1, topology=topology, peer=peer)

    expected = [forecast("topk", "mesh"), forecast("DDP fp32", peer=True), forecast("dense"), forecast("DDP fp16", peer=True)]
    found = predictions.contenders_of(Options(ddp=("fp32",)), expected)
    assert [(each.label, contender) for each, contender in found] == [
        ("topk under --topology mesh", Psnode("topk --timeline true --topology mesh")), ("DDP fp32", Ddp("fp32")),
        ("dense", Psnode("dense --timeline true")),
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="counts passed-on bytes twice"):
        list(predictions.contenders_of(Options(), [forecast("dense", "star:down=tree")]))
