"""The loss from which a backward pass began, compared with the loss that is passed to the step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from psnode.errors import ConfigurationError
from psnode.worker.roots import Roots


class Parts:
    """A loss of a batch, a penalty and a second loss, all functions of one parameter."""

    def __init__(self) -> None:
        self.weight = torch.tensor([0.5, -2.0, 3.0], requires_grad=True)
        self.loss = (self.weight - 1).pow(2).mean()
        self.penalty = self.weight.abs().sum()
        self.other = self.weight.exp().mean()


@contextlib.contextmanager
def watched() -> Iterator[Roots]:
    roots = Roots(lambda losses: None)
    try:
        yield roots
    finally:
        roots.remove()


def refusal(begun: Callable[[Parts], torch.Tensor], told: Callable[[Parts], Any], batches: int, weight: float | None) -> str:
    parts = Parts()
    with watched() as roots:
        gradient = None if weight is None else torch.tensor(weight)
        begun(parts).backward(gradient)  # type: ignore[no-untyped-call]
        found = told(parts)
        value = float(found.detach() if isinstance(found, torch.Tensor) else found)
        try:
            roots.compare(found, value, batches)
        except ConfigurationError as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("begun", "told", "batches", "weight", "factor"),
    [
        (lambda p: 0.25 * (p.loss + p.penalty), lambda p: p.loss, 1, None, "0.25"),
        (lambda p: (p.loss + p.penalty) / 4, lambda p: p.loss, 1, None, "0.25"),
        (lambda p: (p.loss + p.penalty) * torch.tensor(1024.0), lambda p: p.loss, 1, None, "1024"),
        (lambda p: -3 * (p.other - (p.loss + p.penalty)), lambda p: p.loss, 1, None, "-3"),
        (lambda p: p.loss + p.penalty, lambda p: p.loss, 1, 8.0, "8"),
        (lambda p: 0.5 * (p.loss + p.penalty), lambda p: p.loss, 4, None, "0.5"),
        (lambda p: 10 * torch.stack([p.loss, p.penalty]).sum(), lambda p: p.penalty, 1, None, "10"),
        (lambda p: 10 * p.loss.exp(), lambda p: p.loss, 1, None, "10"),
        (lambda p: 10 * p.loss, lambda p: p.loss, 1, None, "10"),
        (lambda p: 10 * p.loss, lambda p: p.loss.item(), 1, None, "10"),
    ],
)
def test_a_factor_of_all_that_backward_began_from_is_refused(
    begun: Callable[[Parts], torch.Tensor], told: Callable[[Parts], Any], batches: int, weight: float | None, factor: str
) -> None:
    found = refusal(begun, told, batches, weight)
    assert f"backward began from {factor} times " in found
    assert "\n" not in found


@pytest.mark.parametrize(
    ("begun", "told", "batches"),
    [
        (lambda p: p.loss + p.penalty, lambda p: p.loss, 1),
        (lambda p: p.loss + p.penalty, lambda p: p.penalty, 1),
        (lambda p: 0.7 * p.loss + 0.3 * p.other, lambda p: p.loss, 1),
        (lambda p: p.loss + 0.01 * p.penalty, lambda p: p.penalty, 1),
        (lambda p: 1.0 * (p.loss + p.penalty), lambda p: p.loss, 1),
        (lambda p: (p.loss + p.penalty) / 4, lambda p: p.loss, 4),
        (lambda p: p.loss + p.penalty, lambda p: p.loss, 4),
        (lambda p: torch.stack([p.loss, p.other]).mean(), lambda p: p.loss, 1),
        (lambda p: 0.25 * (p.loss + p.penalty), lambda p: p.loss.item(), 1),  # a number has no graph
        (lambda p: 0.25 * (p.loss + p.penalty), lambda p: p.loss.detach().clone(), 1),
        (lambda p: 0.25 * (p.loss + p.penalty), lambda p: (p.weight - 1).pow(2).mean(), 1),  # another graph
        (lambda p: p.loss, lambda p: p.loss + p.penalty, 1),
        (lambda p: p.loss / 2, lambda p: torch.stack([p.loss.detach(), p.loss / 2]).mean(), 2),
        (lambda p: p.loss, lambda p: p.loss, 1),
    ],
)
def test_parts_of_a_sum_weights_of_terms_means_and_copies_are_the_loops_own(
    begun: Callable[[Parts], torch.Tensor], told: Callable[[Parts], Any], batches: int
) -> None:
    assert refusal(begun, told, batches, None) == ""
