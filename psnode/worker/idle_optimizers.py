"""Refusal of the program's own optimizers over parameters that a session trains, since their steps would have no effect.

torch has a hook that detects an optimizer's step. It has no hook for a scheduler, or for a line that sets a learning rate.
Both change the optimizer's settings, so the settings are compared from step to step.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from psnode.errors import ConfigurationError

_INSTEAD = (
    "say optimizer=, lr=, momentum=, weight_decay=, lr_schedule= to the session, or optimizer=f, learning_rate=f of your own"
)


class IdleOptimizers:
    """Watches the optimizers that hold a trained parameter. `trained`: the ids of the trained parameters.

    Optimizers are searched for at steps 1, 2, 4, 8, ..., since a search visits all objects.
    """

    def __init__(self, trained: Collection[int]) -> None:
        self._trained, self._checks = trained, 0
        self._states: list[tuple[weakref.ref[Any], str]] = []
        self._handle = register_optimizer_step_pre_hook(self._refuse_step)

    def check(self) -> None:
        """Raise ConfigurationError if the settings of a watched optimizer, or the state of its scheduler, have changed."""
        for found, before in self._states:
            if (subject := found()) is not None and (now := _settings(subject)) != before:
                raise ConfigurationError(
                    f"{_what(subject)} of the program's own over parameters of the session changes ({_change(before, now)}), "
                    "which has no effect on them: remove scheduler.step() and what sets its learning rate, and "
                    f"{_INSTEAD}"
                )
        self._checks += 1
        if not self._checks & (self._checks - 1):
            self._states = [(weakref.ref(subject), _settings(subject)) for subject in self._subjects()]

    def remove(self) -> None:
        """Stop watching."""
        self._handle.remove()
        self._states = []

    def _subjects(self) -> list[Any]:
        kinds = (torch.optim.Optimizer, LRScheduler)
        alive = [found for found in gc.get_objects() if issubclass(type(found), kinds)]  # isinstance would wake lazy modules
        optimizers = [found for found in alive if isinstance(found, torch.optim.Optimizer) and self._holds(found)]
        return optimizers + [
            found for found in alive if isinstance(found, LRScheduler) and any(found.optimizer is own for own in optimizers)
        ]

    def _holds(self, optimizer: torch.optim.Optimizer) -> bool:
        groups = getattr(optimizer, "param_groups", ())
        return any(id(parameter) in self._trained for group in groups for parameter in group["params"])

    def _refuse_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._holds(optimizer):
            raise ConfigurationError(
                f"an optimizer of the program's own ({type(optimizer).__name__}) steps over parameters of the session, whose "
                f"gradients have left: remove its step(), and {_INSTEAD}"
            )


def _settings(subject: Any) -> str:
    """Return the values of an optimizer or a scheduler that a schedule may change, as text."""
    if isinstance(subject, LRScheduler):
        return f"last_epoch: {subject.last_epoch}"
    groups = subject.param_groups
    return "; ".join(f"{name}: {group[name]}" for group in groups for name in sorted(group) if _is_plain(group[name]))


def _is_plain(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return isinstance(value, (int, float, str, tuple)) or value is None


def _what(subject: Any) -> str:
    kind = "a scheduler of an optimizer" if isinstance(subject, LRScheduler) else "an optimizer"
    return f"{kind} ({type(subject).__name__})"


def _change(before: str, now: str) -> str:
    old, new = before.split("; "), now.split("; ")
    pairs = (f"{one} to {two.partition(': ')[2]}" for one, two in zip(old, new, strict=False) if one != two)
    return next(pairs, "its parameter groups")
