"""A weight is waited for before any function of torch computes with it, however the model comes to use it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from psnode.worker.arrivals import Arrivals
from psnode.worker.first_use import FirstUse, watchable


class Recorder(Arrivals):
    """Writes down what is required; everything is missing for ever."""

    def __init__(self) -> None:
        self.missing = {0}
        self.asked: list[tuple[int, int]] = []

    def require(self, start: int, stop: int) -> None:
        self.asked.append((start, stop))


def flat(model: nn.Module) -> tuple[torch.Tensor, dict[str, tuple[int, int]]]:
    """The parameters of `model` become views of one vector; where each lies in it."""
    vector = torch.randn(sum(parameter.numel() for parameter in model.parameters()))
    found, start = {}, 0
    for name, parameter in model.named_parameters():
        stop = start + parameter.numel()
        parameter.data = vector[start:stop].view(parameter.shape)
        found[name], start = (start, stop), stop
    return vector, found


def first_uses(model: nn.Module, *inputs: torch.Tensor) -> tuple[list[tuple[int, int]], dict[str, tuple[int, int]]]:
    vector, where = flat(model)
    recorder = Recorder()
    with FirstUse(recorder, vector):
        model(*inputs)
    return list(dict.fromkeys(recorder.asked)), where


def test_layers_are_asked_for_in_the_order_of_the_forward_pass() -> None:
    asked, where = first_uses(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(5, 3))
    assert asked == [where[name] for name in ("0.weight", "0.bias", "2.weight", "2.bias")]


def test_weights_used_without_a_call_of_their_module_are_noticed() -> None:
    """MultiheadAttention never calls its out_proj, nor does an LSTM pass its weights one by one."""
    x = torch.ones(4, 2, 8)
    for model, inputs in ((nn.MultiheadAttention(8, 2), (x, x, x)), (nn.LSTM(8, 3), (x,))):
        asked, where = first_uses(model, *inputs)
        assert set(asked) == set(where.values())


def test_a_view_of_a_weight_is_the_weight() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.data[1:3].t()

    asked, where = first_uses(Views(), torch.ones(5, 6))
    assert asked and all(where["weight"][0] <= start < stop <= where["weight"][1] for start, stop in asked)
    assert (6, 18) in asked  # rows 1 and 2, which the product reads


def test_tensors_apart_from_the_vector_are_not_waited_for() -> None:
    recorder = Recorder()
    with FirstUse(recorder, torch.zeros(3)):
        torch.ones(3) + torch.ones(3)
    assert recorder.asked == []


def test_reading_a_shape_is_no_use() -> None:
    model = nn.Linear(3, 4)
    vector, _ = flat(model)
    recorder = Recorder()
    with FirstUse(recorder, vector):
        assert model.weight.shape == (4, 3)
    assert recorder.asked == []


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripted_modules_are_not_watchable() -> None:
    assert watchable(nn.Sequential(nn.Linear(2, 2)))
    assert not watchable(nn.Sequential(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))))
