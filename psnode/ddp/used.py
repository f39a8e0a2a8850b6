"""Detection of the parameters that a backward pass has used, on this rank and on other ranks."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from psnode.exchange.collectives import Sizes

_BITS = 62  # tensors per int64, one bit each


class Used:
    """The parameters that have received a gradient on this rank since their bucket was last submitted.

    Passes under `no_sync` count, as they do in DDP. This record is needed because DDP leaves the gradient of a parameter
    unchanged if no rank has used the parameter.
    """

    def __init__(self) -> None:
        self._watched: dict[int, weakref.ref[torch.Tensor]] = {}
        self._reached: set[int] = set()

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """From now on, record which of `parameters` receive a gradient."""
        for each in parameters:
            if each.requires_grad and each.is_leaf and not is_lazy(each) and not self._watches(each):
                self._watched[id(each)] = weakref.ref(each)
                self._reached.discard(id(each))
                each.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]

    def take(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> tuple[bool, ...]:
        """Return, for each parameter, True if it has received a gradient, and reset the record of these parameters.

        A parameter that was not watched counts as used if its gradient is not 0.
        """
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
    """Return `used` as integers, with one bit for each tensor."""
    starts = range(0, len(used), _BITS)
    return [sum(flag << k for k, flag in enumerate(used[start : start + _BITS])) for start in starts]


def by_any(rows: Sizes, tensors: int) -> list[bool]:
    """Return, for each tensor, True if any rank has used it. `rows`: the result of `packed` on each rank, one row per rank."""
    words = np.bitwise_or.reduce(rows, axis=0)
    return [bool(int(words[k // _BITS]) >> k % _BITS & 1) for k in range(tensors)]
