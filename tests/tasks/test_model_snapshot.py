"""A snapshot of a model: tensors that passes have changed get their earlier values back, and unchanged tensors are not
written.
"""

from __future__ import annotations

import torch
from torch import nn

from psnode.tasks.model_tensors import ModelSnapshot


def test_a_graph_from_before_a_snapshot_can_still_be_used_after_it() -> None:
    """Check that unchanged weights are not written: torch refuses a backward pass through weights that were written since,
    even with the same values.
    """
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model.register_buffer("passes", torch.zeros(2))
    loss = model(torch.arange(15.0).view(5, 3).sin()).square().mean()
    snapshot = ModelSnapshot(model)
    model.passes += 1
    snapshot.restore()
    assert model.passes.tolist() == [0.0, 0.0]
    loss.backward()
    assert model[0].weight.grad is not None


def test_values_that_are_not_numbers_and_written_ones_are_as_before() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("limit", torch.tensor([torch.nan, -0.0]))
    snapshot = ModelSnapshot(model)
    bits = model.limit.view(torch.int32).tolist()
    with torch.no_grad():
        model.weight.fill_(torch.nan)
        model.limit.zero_()
    snapshot.restore()
    assert model.limit.view(torch.int32).tolist() == bits
    assert model.weight.isfinite().all()
