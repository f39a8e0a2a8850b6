"""The note at the start of a run about coarse gradients under an optimizer of Adam's kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from psnode.config.schemes import SCHEMES
from psnode.config.train_settings import UNDER_ADAM
from psnode.master.lines.opening import doubt_of

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
COARSE = {
    "topk", "dgc", "randk", "graddrop", "adacomp", "atomo", "atomo-entrywise", "atomo-fourier", "tbq", "onebit", "signsgd",
    "signum", "efsignsgd",
}  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_coarse_gradients_under_adam_are_told_and_nothing_else_is(scheme: str, optimizer: str) -> None:
    told = doubt_of(SCHEMES[scheme], optimizer)
    assert bool(told) == (scheme in COARSE and optimizer != "sgd")
    assert not told or f"--scheme {UNDER_ADAM}," in told


def test_the_note_names_what_a_page_of_results_has_measured() -> None:
    """Every scheme but the run's own that it speaks of stands in a table."""
    told = doubt_of(SCHEMES["tbq"], "adamw")
    pages = (RESULTS / "2026-11-23-defaults.md").read_text()
    losing = [name for name in SCHEMES if re.search(rf"\b{name}\b", told.partition("; ")[0].partition(":")[2])]
    assert sorted(losing) == ["atomo", "efsignsgd", "onebit", "topk"]
    assert [name for name in losing if not re.search(rf"^\| {name}[^|]*\|.*\| 2\.2\d\d \|", pages, re.MULTILINE)] == []
    assert re.search(rf"^\| {UNDER_ADAM} \|", (RESULTS / "2026-11-26-adam.md").read_text(), re.MULTILINE)
