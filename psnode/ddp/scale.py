"""The scale of the loss, in whose units gradients arrive and memories are kept."""

from __future__ import annotations

import weakref
from typing import Literal, Protocol

import torch

from psnode.ddp.surroundings import scaler_in_use


class Scaler(Protocol):
    """A number that the loss is multiplied by, as torch.amp.GradScaler has it."""

    def get_scale(self) -> float:
        """The number, of the step that follows."""


class LossScale:
    """The scale of each step beside that of the step before.

    `scaler`: None for the GradScaler that has scaled a loss when the first bucket arrives, if one has; False for none.
    """

    def __init__(self, scaler: Scaler | Literal[False] | None) -> None:
        self._named, self._seeks = scaler or None, scaler is None
        self._found: weakref.ref[torch.amp.GradScaler] | None = None  # it is the program's to keep, and to replace
        if isinstance(scaler, torch.amp.GradScaler):
            self._named, self._found = None, weakref.ref(scaler)
        self.last: float | None = None  # that of the memories; None before the first step

    def seek(self) -> None:
        """Find the GradScaler that the program uses, unless one was named."""
        if self._seeks:
            scaler = scaler_in_use()
            self._found = None if scaler is None else weakref.ref(scaler)

    def change(self) -> float:
        """The number that memories are multiplied by before a step."""
        if self._found is not None and self._found() is None:
            self.seek()
        scaler = self._named if self._found is None else self._found()
        now = 1.0 if scaler is None else float(scaler.get_scale())
        last, self.last = self.last or now, now
        return now / last
