"""The study of --plan auto: the ratio that it reports, and its page."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from studies import choices
from studies.choices import STUDY, Options, slower
from studies.harness import page


def test_a_choice_is_compared_with_the_fastest_of_the_others() -> None:
    assert slower({"a": [3.0, 1.0, 2.0], "b": [1.5, 9.0, 1.4], "--plan auto": [1.65, 1.6, 7.0]}) == pytest.approx(1.65 / 1.5)
    assert slower({"a": [2.0], "--plan auto": [1.0]}) == pytest.approx(0.5)


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
