"""Parameters that a backward pass has reached, on this rank and on others."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from psnode.exchange.collectives import Sizes

_BITS = 62  # bits of an int64, one per tensor


class Used:
    """Parameters that have received a gradient on this rank since they were last sent.

    Passes under `no_sync` count, as they do for DDP, which leaves the gradient of a parameter that no rank has used unchanged.
    """

    def __init__(self) -> None:
        self._watched: dict[int, weakref.ref[torch.Tensor]] = {}
        self._reached: set[int] = set()

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Record from now on when one of them receives a gradient."""
        for each in parameters:
            if each.requires_grad and each.is_leaf and not is_lazy(each) and not self._watches(each):
                self._watched[id(each)] = weakref.ref(each)
                self._reached.discard(id(each))
                each.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]

    def take(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> tuple[bool, ...]:
        """Return True for each parameter that has been reached, and reset it. A parameter that is not watched counts if its
        gradient is not 0."""
        reached = tuple(
            id(each) in self._reached if self._watches(each) else bool(gradient.any())
            for each, gradient in zip(parameters, gradients, strict=True)
        )
        self._reached.difference_update(map(id, parameters))
        self.watch(parameters)
        return reached

    def _watches(self, parameter: torch.Tensor) -> bool:
        found = self._watched.get(id(parameter))
        return found is not None and found() is parameter

    def _note(self, parameter: torch.Tensor) -> None:
        self._reached.add(id(parameter))


def packed(used: Sequence[bool]) -> list[int]:
    """Return numbers that hold a bit for each tensor."""
    starts = range(0, len(used), _BITS)
    return [sum(flag << k for k, flag in enumerate(used[start : start + _BITS])) for start in starts]


def by_any(rows: Sizes, tensors: int) -> list[bool]:
    """Return True for each tensor that one of the ranks has used; `rows`: the packed numbers of each rank."""
    words = np.bitwise_or.reduce(rows, axis=0)
    return [bool(int(words[k // _BITS]) >> k % _BITS & 1) for k in range(tensors)]
