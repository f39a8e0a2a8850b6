"""The record of losses: costs compared with sums by hand, the rates that count, notable costs, and schemes that have not
changed since.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from psnode.config import Config, scheme_losses
from psnode.config.resolve import resolve
from psnode.config.scheme_losses import LossCost, costs
from psnode.config.schemes import SCHEMES

TOPK = "topk:ratio=0.01"


def entry(cell: str, run: str, seed: int, loss: float, top1: float = 0.5, lr: float = 0.01, ratio: float = 1.0) -> dict[str, Any]:
    codec = "identity" if run == "dense" else TOPK
    coded = {"codec": codec, "feedback": "none", "downlink": "dense", "downlink_lead": 0.0}
    return {"cell": cell, "run": run, "seed": seed, "loss": loss, "top1": top1, "lr": lr, "ratio": ratio, **coded}


def test_costs_of_language_are_percent_of_denses_loss_with_the_same_seed() -> None:
    cell = "gpt-small/adamw/700"
    found = costs(
        [
            *(entry(cell, "dense", seed, loss) for seed, loss in ((1, 2.0), (2, 1.0), (3, 4.0))),
            *(entry(cell, "topk", seed, loss, ratio=10.0 + seed) for seed, loss in ((1, 2.2), (2, 1.2), (3, 4.4), (4, 9.0))),
        ]
    )
    dense, topk = found
    assert (dense.run, dense.mean) == ("dense", 0)
    assert topk.mean == pytest.approx((10 + 20 + 10) / 3)
    assert topk.error == pytest.approx(math.sqrt(((10 - 40 / 3) ** 2 * 2 + (20 - 40 / 3) ** 2) / 2) / math.sqrt(3))
    assert (topk.seeds, topk.ratio, topk.coded) == (3, pytest.approx(12), (TOPK, "none", "dense", 0.0))


def test_costs_of_images_are_points_of_accuracy() -> None:
    found = costs([entry("lenet/sgd/400", "dense", 1, 0.1, 0.97), entry("lenet/sgd/400", "topk", 1, 0.3, 0.96)])
    assert found[1].mean == pytest.approx(1.0)
    assert found[1].error is None


def test_the_rate_that_was_best_by_the_first_seed_counts() -> None:
    cell = "lstm/sgd/400"
    tried = [entry(cell, "dense", 1, loss, lr=lr) for lr, loss in ((0.01, 3.0), (0.03, 2.0), (0.1, 2.5))]
    others = [entry(cell, "dense", 2, 5.0, lr=0.03), entry(cell, "dense", 2, 1.0, lr=0.1)]
    coded = [entry(cell, "topk", 1, 2.2, lr=0.1), entry(cell, "topk", 1, 2.3, lr=0.3), entry(cell, "topk", 2, 5.5, lr=0.1)]
    topk = costs([*tried, *others, *coded])[1]
    assert topk.lr == 0.1
    assert topk.mean == pytest.approx((10 + 10) / 2)


def test_a_scheme_without_dense_beside_it_has_no_cost() -> None:
    assert costs([entry("lstm/sgd/400", "topk", 1, 2.2)]) == []


@pytest.mark.parametrize(
    ("model", "mean", "error", "notable"),
    [("gpt-small", 2.1, None, True), ("gpt-small", 1.9, None, False), ("gpt-small", 2.1, 1.2, False), ("vit", 0.7, 0.1, True)],
)
def test_a_cost_is_notable_beyond_its_scatter(model: str, mean: float, error: float | None, notable: bool) -> None:
    assert LossCost(f"{model}/adamw/700", "topk", (TOPK, "none", "dense", 0.0), mean, error, 40.0, 3, 0.01).is_notable == notable


def test_each_kind_of_optimizer_has_costs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = costs(
        [
            entry(cell, run, 1, loss)
            for cell in ("lstm/sgd/400", "lstm/adamw/400", "gpt-small/adamw/700")
            for run, loss in (("dense", 2.0), ("topk", 2.2 if "lstm" in cell else 3.0))
        ]
    )
    monkeypatch.setattr(scheme_losses, "measured", lambda: tuple(found))
    coded = (TOPK, "none", "dense", 0.0)
    assert [cost.cell for cost in scheme_losses.costs_of(coded, "radam")] == ["gpt-small/adamw/700", "lstm/adamw/400"]
    assert [cost.cell for cost in scheme_losses.costs_of(coded, "sgd")] == ["lstm/sgd/400"]
    assert scheme_losses.costs_of(("topk:ratio=0.5", "none", "dense", 0.0), "sgd") == []


def test_named_schemes_of_the_record_are_what_they_are_today() -> None:
    """Check that each scheme in the record still has the coding that was measured: otherwise its users would be shown
    another scheme's figures.
    """
    named = [cost for cost in scheme_losses.measured() if cost.run in SCHEMES]
    assert {cost.of_adam for cost in named} == {True, False}
    for cost in named:
        found = resolve(Config(scheme=cost.run, optimizer=cost.cell.split("/")[1]))
        assert cost.coded == (found.codec, found.feedback, found.downlink, found.downlink_lead)
