"""Tests of one process do not see the functions that other tests have left in PyTorch."""

from __future__ import annotations

import pytest
import torch

from psnode.worker.inspection import unwatchable

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch.compile loads deprecated modules
    pytest.mark.xdist_group("compiled"),  # all in one process, one after another
]


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x + x


@pytest.mark.parametrize("how", ["compiled", "scripted"])
@pytest.mark.parametrize("time", [1, 2])
def test_what_a_test_compiles_is_unseen_by_the_next(how: str, time: int) -> None:
    """Check that functions which one test has compiled are hidden from the next: otherwise profiles are refused, and runs
    wait for all weights.
    """
    model = torch.nn.Linear(2, 2)
    assert not unwatchable(model)
    function = torch.compile(doubled, backend="eager") if how == "compiled" else torch.jit.script(doubled)
    assert function(torch.ones(1)) == 2
    if time == 1:  # PyTorch keeps the script, so that the second time it is none of this test's
        assert unwatchable(model)
