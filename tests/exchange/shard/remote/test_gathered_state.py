"""The state of several parts, joined one after another: pieces of tensors at their positions, numbers, and norms."""

from __future__ import annotations

import itertools

import pytest
import torch

from psnode.exchange.shard.remote.gathered_state import JoinedState
from psnode.exchange.shard.state import own_tensors
from psnode.plans.groups import Plan, Tensor
from psnode.plans.part import PlanPart, part_of
from psnode.plans.rule import make_plan
from psnode.records import checkpoint

TENSORS = [Tensor("cut", (1000, 60)), Tensor("whole", (30,))]


def parts(ranks: int) -> list[PlanPart]:
    """Return the parts of a plan whose large tensor is cut into pieces; the pieces are dealt to the parts in turn."""
    plan: Plan = make_plan(TENSORS, "identity", group_bytes=1 << 15, group_by="bytes", min_compress_bytes=0)
    return [part_of(plan, range(rank, len(plan.groups), ranks)) for rank in range(ranks)]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_parts_in_any_order_are_the_whole(order: tuple[int, ...]) -> None:
    torch.manual_seed(1)
    model = {tensor.name: torch.randn(tensor.shape) for tensor in TENSORS}
    memories = {f"first/{name}": torch.randn(value.numel()) for name, value in model.items()}
    found, every = JoinedState(), parts(3)
    assert all("cut" in part.pieces for part in every)
    for place in order:
        part = every[place]
        files = {
            checkpoint.MODEL: own_tensors(part, model, memories=False),
            checkpoint.OPTIMIZER: own_tensors(part, memories, memories=True),
        }
        found.add(part, files)
    for file, whole in ((checkpoint.MODEL, model), (checkpoint.OPTIMIZER, memories)):
        assert found.files[file].keys() == whole.keys()
        assert all(found.files[file][name].reshape(-1).equal(value.reshape(-1)) for name, value in whole.items())


def test_equal_numbers_stay_one_number_and_different_ones_fill_their_pieces() -> None:
    every = parts(3)
    sizes = [sum(where.stop - where.start for where in part.pieces["cut"]) for part in every]
    for numbers in ([7.0, 7.0, 7.0], [7.0, 7.0, 8.0], [7.0, 8.0, 7.0]):
        found = JoinedState()
        for part, number in zip(every, numbers, strict=True):
            found.add(part, {checkpoint.OPTIMIZER: {"step/cut": torch.tensor(number)}})
        value = found.files[checkpoint.OPTIMIZER]["step/cut"]
        if len(set(numbers)) == 1:
            assert value.equal(torch.tensor(7.0))
        else:
            assert value.numel() == 60_000
            for part, number in zip(every, numbers, strict=True):
                assert all((value[where] == number).all() for where in part.pieces["cut"])
            assert sum(numbers[k] * sizes[k] for k in range(3)) == value.double().sum()


def test_a_number_beside_values_fills_its_piece() -> None:
    every = parts(2)
    for first, second in ((0, 1), (1, 0)):
        found = JoinedState()
        pieces = every[second].pieces["cut"]
        values = torch.arange(sum(where.stop - where.start for where in pieces), dtype=torch.float32)
        given = {first: torch.tensor([3.0]), second: values}
        for place in (0, 1):
            found.add(every[place], {checkpoint.OPTIMIZER: {"step/cut": given[place]}})
        whole = found.files[checkpoint.OPTIMIZER]["step/cut"]
        assert all((whole[where] == 3).all() for where in every[first].pieces["cut"])
        assert torch.cat([whole[where] for where in pieces]).equal(values)
