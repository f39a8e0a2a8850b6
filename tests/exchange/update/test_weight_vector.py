"""The weights of groups, with and without a model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash
from torch import nn

from psnode.config import Config
from psnode.errors import CheckpointError, ConfigurationError
from psnode.exchange.update.parameters import Parameters
from psnode.exchange.update.served_model import ServedModel
from psnode.exchange.update.weight_vector import WeightsWithoutModel
from psnode.plans.groups import Plan, Tensor
from psnode.plans.rule import make_plan

TENSORS = [Tensor("b", (2, 3)), Tensor("a", (4,))]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.arange(4.0)), nn.Parameter(torch.arange(6.0).view(2, 3))
        self.frozen = nn.Parameter(torch.tensor([9.0]), requires_grad=False)
        self.tied = self.a
        self.register_buffer("scale", torch.tensor(0.5))


def plan() -> Plan:
    return make_plan(TENSORS, "identity")


def test_weights_without_a_model_are_updated_as_torch_updates_them() -> None:
    start, gradient = torch.linspace(-1, 1, 10), np.linspace(2, -1, 10, dtype=np.float32)
    weights = WeightsWithoutModel(plan(), start.clone())
    parameters = Parameters(weights.vector, plan(), Config(lr=0.1, momentum=0.9), 0.9)
    theirs = nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=0.9)
    for _ in range(3):
        parameters.update(0, gradient.copy(), 1.0, 0.1)
        theirs.grad = torch.from_numpy(gradient)
        optimizer.step()
    assert torch.equal(weights.vector, theirs.detach())
    assert {name: value.tolist() for name, value in weights.state().items()} == {
        "b": theirs[:6].tolist(), "a": theirs[6:].tolist(),
    }  # fmt: skip
    assert weights.digest() == xxhash.xxh3_128_hexdigest(theirs.detach().numpy().tobytes())


def test_weights_without_a_model_take_tensors_of_any_shape_and_no_constraint() -> None:
    weights = WeightsWithoutModel(plan(), torch.zeros(10))
    model = Net()
    weights.load(model.state_dict())
    assert weights.vector.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    with pytest.raises(CheckpointError, match="b is missing"):
        weights.load({"a": torch.zeros(4), "b": torch.zeros(5)})
    with pytest.raises(ConfigurationError, match="whole model"):
        weights.constrain(lambda model: None)


def test_the_vector_of_a_served_model_has_its_values_and_is_its_memory() -> None:
    model = Net()
    weights = ServedModel(model, plan(), torch.empty(10))
    assert weights.vector.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    weights.vector += 1
    assert model.b.tolist() == [[1, 2, 3], [4, 5, 6]] and model.tied.tolist() == [1, 2, 3, 4]


def test_the_digest_of_a_served_model_is_of_all_parameters_in_state_dict_order() -> None:
    weights = ServedModel(Net(), plan(), torch.empty(10))
    parts = [np.arange(4.0), np.arange(6.0), np.array([9.0])]
    assert weights.digest() == xxhash.xxh3_128_hexdigest(np.concatenate(parts).astype(np.float32).tobytes())


def test_another_vector_stands_for_trained_parameters_and_their_ties_in_the_state() -> None:
    weights = ServedModel(Net(), plan(), torch.empty(10))
    found = weights.state(torch.arange(10.0) + 20)
    assert {name: value.tolist() for name, value in found.items()} == {
        "a": [26, 27, 28, 29], "tied": [26, 27, 28, 29], "b": [[20, 21, 22], [23, 24, 25]], "frozen": [9], "scale": 0.5,
    }  # fmt: skip


def test_a_constraint_may_give_parameters_other_memory() -> None:
    def halve(model: nn.Module) -> None:
        model.a.data = model.a.data / 2
        model.b /= 2

    model = Net()
    weights = ServedModel(model, plan(), torch.empty(10))
    weights.constrain(halve)
    assert weights.vector.tolist() == [0, 0.5, 1, 1.5, 2, 2.5, 0, 0.5, 1, 1.5]
    assert model.a.data_ptr() == weights.vector[6:].data_ptr()
