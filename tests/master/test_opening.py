"""The note at the start of a run about coarse gradients under an optimizer of Adam's kind."""

from __future__ import annotations

import pytest

from psnode.config.schemes import SCHEMES
from psnode.master.lines.opening import doubt_of

COARSE = {
    "topk", "dgc", "randk", "graddrop", "atomo", "atomo-entrywise", "tbq", "onebit", "signsgd", "signum", "efsignsgd",
}  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_coarse_gradients_under_adam_are_told_and_nothing_else_is(scheme: str, optimizer: str) -> None:
    told = doubt_of(SCHEMES[scheme], optimizer)
    assert bool(told) == (scheme in COARSE and optimizer != "sgd")
    assert not told or "--scheme qsgd" in told
