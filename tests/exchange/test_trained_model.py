"""The model computes with the weights that the master published. If the model has written a parameter, the run ends and
names it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from psnode.errors import ConfigurationError
from psnode.exchange.flat_model import describe
from psnode.exchange.trained_model import TrainedModel
from psnode.plans.rule import make_plan


def trained() -> TrainedModel:
    model = nn.Linear(3, 2)
    return TrainedModel(model, make_plan(describe(model), "identity"), torch.device("cpu"))


def in_place(weight: nn.Parameter) -> None:
    with torch.no_grad():
        weight.mul_(2)


def below_no_grad(weight: nn.Parameter) -> None:
    weight.detach()[0].mul_(2)


def other_memory(weight: nn.Parameter) -> None:
    weight.data = weight.data * 2


def other_shape(weight: nn.Parameter) -> None:
    weight.data = weight.data.t()


@pytest.mark.parametrize("write", [in_place, below_no_grad, other_memory, other_shape])
def test_a_parameter_that_a_step_wrote_is_named_at_once(write: Callable[[nn.Parameter], None]) -> None:
    found = trained()
    found.check()
    write(found.parameters["weight"])
    with pytest.raises(ConfigurationError, match=r"writes parameter weight.*Task\.constrain"):
        found.check()


def by_data(weight: nn.Parameter) -> None:
    weight.data.mul_(2)


def by_numpy(weight: nn.Parameter) -> None:
    array = weight.detach().numpy()
    np.multiply(array, 2, out=array)


@pytest.mark.parametrize("write", [by_data, by_numpy, in_place])
def test_a_write_that_leaves_no_trace_is_named_by_its_values(write: Callable[[nn.Parameter], None]) -> None:
    found = trained()
    marks = found.marks()
    found.compare(marks)
    write(found.parameters["weight"])
    with pytest.raises(ConfigurationError, match="writes parameter weight"):
        found.compare(marks)


def with_frozen_bias() -> TrainedModel:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    model.bias.data = model.bias.data.bfloat16()
    return TrainedModel(model, make_plan(describe(model), "identity"), torch.device("cpu"))


@pytest.mark.parametrize("write", [in_place, below_no_grad])
def test_a_frozen_parameter_that_a_step_wrote_is_named_at_once(write: Callable[[nn.Parameter], None]) -> None:
    found = with_frozen_bias()
    found.check()
    write(found.model.bias)
    with pytest.raises(ConfigurationError, match=r"writes parameter bias, which is not trained.* as a buffer"):
        found.check()


def test_a_write_to_a_frozen_parameter_that_leaves_no_trace_is_named_by_its_values() -> None:
    found = with_frozen_bias()
    marks = found.marks()
    found.compare(marks)
    found.model.bias.data.fill_(3)
    with pytest.raises(ConfigurationError, match="writes parameter bias, which is not trained"):
        found.compare(marks)


def test_a_parameter_that_moved_with_nan_holds_equal_values() -> None:
    found = trained()
    found.vector[:] = torch.nan
    found.parameters["weight"].data = found.parameters["weight"].data.clone()
    found.check()


def test_a_saved_buffer_that_grew_is_named_with_both_shapes() -> None:
    model = nn.BatchNorm1d(2)
    found = TrainedModel(model, make_plan(describe(model), "identity"), torch.device("cpu"))
    assert found.buffers().keys() == {"running_mean", "running_var", "num_batches_tracked"}
    model.running_var = torch.ones(3)
    with pytest.raises(ConfigurationError, match=r"buffer running_var .* of shape \(2,\) and is .* of shape \(3,\)"):
        found.buffers()


def test_a_parameter_that_moved_with_its_values_is_a_view_again() -> None:
    found = trained()
    weight = found.parameters["weight"]
    for _ in range(3):
        weight.data = weight.data.clone()
        found.check()
        found.vector[:] += 1
        assert torch.equal(weight.detach().reshape(-1), found.vector[:6])


def test_weights_that_changed_under_a_moved_parameter_are_taken_over() -> None:
    """Check that a moved parameter gets the new values of the vector in a step that is not taken: the next version arrived
    after its forward pass.
    """
    found = trained()
    found.parameters["bias"].data = found.parameters["bias"].data.clone()
    found.vector[:] = 7
    found.check(settled=False)
    assert found.parameters["bias"].tolist() == [7, 7]
