"""Hooks report each group once, when its last gradient is ready."""

from __future__ import annotations

from functools import partial
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from psnode.errors import ConfigurationError
from psnode.exchange.flat_model import describe, trainable
from psnode.exchange.gradients import Gradients
from psnode.exchange.replica import Replica
from psnode.exchange.trained_model import TrainedModel
from psnode.plans.groups import Plan
from psnode.plans.rule import make_plan
from psnode.worker.backward_hooks import BackwardWatch, GroupHooks, finish_times


class Branches(nn.Module):
    """Two layers in sequence, and a layer that the loss does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def prepared(group_by: str = "layer", group_bytes: int = 1 << 20) -> tuple[Branches, Plan, Gradients, list[int], GroupHooks]:
    model = Branches()
    parameters = trainable(model)
    order, late = finish_times(parameters, lambda watch: model(torch.ones(2, 8)).sum().backward())
    assert late == []
    tensors = {tensor.name: tensor for tensor in describe(model)}
    plan = make_plan([tensors[name] for name in order], "identity", group_by=group_by, group_bytes=group_bytes)
    gradients = Gradients(parameters, plan, torch.device("cpu"))
    finished: list[int] = []
    return model, plan, gradients, finished, GroupHooks(parameters, plan, gradients.collect, finished.append)


def test_gradients_finish_from_the_last_layer_to_the_first_and_unused_ones_come_last() -> None:
    _, plan, _, _, _ = prepared()
    names = [tensor.name for tensor in plan.tensors]
    assert names[0].startswith("second") and names[2].startswith("first") and names[4].startswith("unused")


def test_measuring_the_order_leaves_no_gradients() -> None:
    model = Branches()
    finish_times(trainable(model), lambda watch: model(torch.ones(2, 8)).sum().backward())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_seconds_count_from_the_beginning_of_the_pass_and_unused_parameters_have_those_of_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that seconds count from the beginning of the pass, and that unused parameters have those of its end, with a
    clock that advances by one second whenever it is read.
    """
    monkeypatch.setattr("psnode.worker.backward_hooks.time", SimpleNamespace(perf_counter=partial(next, map(float, count()))))
    model = Branches()

    def backward(watch: BackwardWatch) -> None:
        loss = model(torch.ones(2, 8)).sum()
        watch.arm()
        loss.backward()
        watch.flush()

    seconds, _ = finish_times(trainable(model), backward)
    assert {name.split(".")[0] for name in list(seconds)[:2]} == {"second"}
    assert list(seconds.values()) == [1.0, 2.0, 3.0, 4.0, 5.0, 5.0]
    assert list(seconds)[4:] == ["unused.weight", "unused.bias"]


@pytest.mark.parametrize(("group_by", "group_bytes"), [("layer", 1), ("bytes", 64), ("bytes", 1 << 20), ("model", 1)])
def test_every_group_is_reported_once_a_pass_and_unused_ones_at_the_flush(group_by: str, group_bytes: int) -> None:
    model, plan, gradients, finished, hooks = prepared(group_by, group_bytes)
    for _ in range(3):
        finished.clear()
        hooks.arm()
        model(torch.ones(2, 8)).sum().backward()
        before_flush = list(finished)
        hooks.flush()
        assert sorted(finished) == [group.index for group in plan.groups]
        if group_by == "layer":
            assert before_flush == [0, 1] and finished == [0, 1, 2]


def test_unarmed_passes_are_not_looked_at_but_accumulate() -> None:
    model, plan, gradients, finished, hooks = prepared()
    model(torch.ones(2, 8)).sum().backward()
    assert finished == []
    hooks.arm()
    model(torch.ones(2, 8)).sum().backward()
    hooks.flush()
    where = plan.slices()["second.bias"]
    group = next(g for g in plan.groups if g.start <= where.start < g.stop)
    assert group.start <= where.start and where.stop <= group.stop
    assert gradients.flat(where.start, where.stop).tolist() == [4.0] * 4  # 2 examples per pass, d sum/d bias = 1 each


def test_gradients_lie_in_the_flat_vector_where_the_plan_says_whole_or_in_pieces() -> None:
    model, plan, gradients, _, hooks = prepared("model")
    reference = Branches()
    for _ in range(2):  # the second pass finds nothing of the first
        reference.load_state_dict(model.state_dict())
        x = torch.randn(5, 8)
        reference.zero_grad()
        reference(x).square().sum().backward()
        hooks.arm()
        model(x).square().sum().backward()
        hooks.flush()
        expected = np.zeros(plan.size, np.float32)
        for name, parameter in reference.named_parameters():
            if parameter.grad is not None:
                expected[plan.slices()[name]] = parameter.grad.reshape(-1).numpy()
        assert np.array_equal(gradients.flat(0, plan.size), expected)
        assert all(parameter.grad is None for parameter in model.parameters())
        for start in range(0, plan.size, 7):
            stop = min(start + 19, plan.size)
            found = np.zeros(stop - start, np.float32)
            for place, part in gradients.parts(start, stop):
                found[place : place + part.size] = part
            assert np.array_equal(found, expected[start:stop])
            assert np.array_equal(gradients.flat(start, stop), expected[start:stop])
        gradients.clear()


def test_weights_written_into_the_flat_vector_are_the_models() -> None:
    model, plan, _, _, _ = prepared("model")
    replica = Replica(TrainedModel(model, plan, torch.device("cpu")).vector)
    replica.weights[:] = 3.0
    assert all(bool((parameter == 3.0).all()) for parameter in model.parameters())


def test_a_changed_weight_changes_the_digest() -> None:
    model, plan, _, _, _ = prepared()
    replica = Replica(TrainedModel(model, plan, torch.device("cpu")).vector)
    before = replica.digest()
    with torch.no_grad():
        model.first.weight[0, 0] += 1e-6
    assert replica.digest() != before


class Segments(nn.Module):
    """A model that calls one layer `uses` times, each time in a segment of reentrant checkpointing of its own. In the backward
    pass the segments add to the layer's gradients one after another.
    """

    def __init__(self, uses: int) -> None:
        super().__init__()
        self.first, self.again, self.uses = nn.Linear(8, 8), nn.Linear(8, 8), uses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(self.uses):
            x = checkpoint(self.again, x, use_reentrant=True)
        return x


def collected(model: Segments, late: list[str]) -> dict[str, np.ndarray]:
    """Return the gradients of the model by name, as they are at the moment when their groups are reported."""
    plan = make_plan(describe(model), "identity", group_by="layer")
    gradients = Gradients(trainable(model), plan, torch.device("cpu"))
    sent: dict[int, np.ndarray] = {}

    def finished(index: int) -> None:
        sent[index] = gradients.flat(plan.groups[index].start, plan.groups[index].stop).copy()

    hooks = GroupHooks(trainable(model), plan, gradients.collect, finished, late)
    hooks.arm()
    model(torch.ones(2, 8)).square().sum().backward()
    hooks.flush()
    flat = np.concatenate([sent[group.index] for group in plan.groups])
    return {name: flat[where] for name, where in plan.slices().items()}


def test_a_gradient_that_a_pass_adds_to_repeatedly_is_taken_whole() -> None:
    model = Segments(3)
    model(torch.ones(2, 8)).square().sum().backward()
    expected = {name: parameter.grad.reshape(-1).numpy() for name, parameter in model.named_parameters()}
    model.zero_grad()
    _, late = finish_times(trainable(model), lambda watch: model(torch.ones(2, 8)).square().sum().backward())
    assert sorted(late) == ["again.bias", "again.weight"]
    found = collected(model, late)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-6)


def test_what_is_added_to_a_gradient_after_it_was_taken_is_refused_by_name() -> None:
    model = Segments(1)
    _, late = finish_times(trainable(model), lambda watch: model(torch.ones(2, 8)).square().sum().backward())
    assert late == []
    model.uses = 2
    with pytest.raises(ConfigurationError, match=r"parameter again\.(weight|bias) got a part of its gradient after the rest was"):
        collected(model, late)


def test_sparse_gradients_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True))
    with pytest.raises(ConfigurationError, match="sparse gradients"):
        finish_times(trainable(model), lambda watch: model(torch.tensor([1, 2])).sum().backward())


def test_weights_that_are_not_float32_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="float64"):
        trainable(nn.Linear(2, 2).double())
