"""The search for the learning rate of a cell of the record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from psnode.errors import DivergedError, PsnodeError

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from loss_record import CELLS, Recorder  # noqa: E402


class Told(Recorder):
    """Trains nothing: the losses, by rate, are given. A rate that is missing diverges."""

    def __init__(self, losses: dict[str, float], failing: str = "") -> None:
        super().__init__(next(cell for cell in CELLS if not cell.adam), Path(), {})
        self._losses, self._failing = losses, failing
        self.trained: list[str] = []

    def complete(self, run: str, seed: int, lr: str) -> None:
        self.trained.append(lr)
        if lr == self._failing:
            raise PsnodeError("there is no such directory")
        if lr not in self._losses:
            raise DivergedError(f"{run} at {lr}")

    def found(self, run: str, seed: int, lr: str | None = None) -> list[dict[str, Any]]:
        return [{"loss": self._losses[str(lr)]}]


def test_rates_are_tried_beyond_the_best_until_it_is_not_the_last() -> None:
    assert Told({"0.01": 3.0, "0.03": 2.0, "0.1": 2.5}).best("dense") == "0.03"
    assert Told({"0.01": 3.0, "0.03": 2.5, "0.1": 2.0, "0.3": 1.5, "0.9": 1.7}).best("dense") == "0.3"
    assert Told({"0.01": 1.0, "0.03": 2.0, "0.1": 3.0, "0.003": 1.1}).best("dense") == "0.01"


def test_a_rate_that_diverges_is_not_the_best() -> None:
    assert Told({"0.01": 3.0, "0.03": 2.0, "0.1": 1.5, "0.3": 1.0}).best("dense") == "0.3"
    assert Told({"0.003": 2.0, "0.001": 2.1}).best("dense") == "0.003"


def test_a_rate_that_diverged_is_not_tried_again() -> None:
    recorder = Told({"0.01": 3.0, "0.03": 2.0})
    assert [recorder.best("dense") for _ in range(3)] == ["0.03"] * 3
    assert recorder.trained.count("0.1") == 1


def test_another_failure_ends_the_search() -> None:
    recorder = Told({"0.03": 2.0, "0.1": 1.5}, failing="0.01")
    with pytest.raises(PsnodeError, match="no such directory"):
        recorder.best("dense")
    assert recorder.trained == ["0.01"]
