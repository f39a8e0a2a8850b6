"""Leaves of a loss's graph: parameters are found and inputs are not, whatever functions lie between."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from psnode.errors import ConfigurationError
from psnode.worker.reached import Reach, name_of, parameters_of


class Criterion(nn.Module):
    """A criterion with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return (z * self.w).sum()


class Twice(torch.autograd.Function):
    """x -> 2 x, as a custom function."""

    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # raised by torch.compile
@pytest.mark.parametrize("way", ["plain", "own function", "checkpointed", "compiled", "frozen", "detached"])
def test_the_parameters_of_a_graph_are_found_unless_nothing_trains_them(way: str) -> None:
    net, criterion, x = nn.Linear(3, 4), Criterion(), torch.randn(2, 3, requires_grad=True)
    criterion.requires_grad_(way != "frozen")
    if way == "checkpointed":
        loss = checkpoint(criterion, net(x), use_reentrant=False)
    elif way == "compiled":
        loss = torch.compile(criterion, backend="aot_eager")(net(x))
    elif way == "detached":
        loss = net(x).sum() + criterion(x.new_ones(4)).detach()
    else:
        loss = criterion(Twice.apply(net(x)) if way == "own function" else net(x))
    expected = {id(parameter) for parameter in net.parameters()}
    expected |= {id(criterion.w)} if way not in ("frozen", "detached") else set()
    assert {id(parameter) for parameter in parameters_of([loss])} == expected


def test_a_backward_pass_that_reaches_nothing_that_is_trained_is_nobodys_business() -> None:
    net, criterion = nn.Linear(3, 4), Criterion()
    reach, trained = Reach(net.parameters(), "train it"), {id(parameter) for parameter in net.parameters()}
    reach.look([criterion(torch.ones(4))], trained, [])
    with pytest.raises(ConfigurationError, match=r"reaches a parameter \(4\).* train it"):
        reach.look([criterion(net(torch.ones(3)))], trained, [])


def test_a_parameter_is_named_as_the_program_holds_it() -> None:
    criterion = Criterion()
    assert name_of(criterion.w, [{"a": 1, "crit": criterion}]) == "crit.w"
    assert name_of(criterion.w, [{"losses": [nn.Linear(1, 1), criterion]}]) == "losses[1].w"
    assert name_of(criterion.w, [{"terms": {"arc": criterion}}]) == "terms['arc'].w"
    assert name_of(criterion.w, [{"self": Reach([], "")}]) == ""
