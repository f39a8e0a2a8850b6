"""The scale of the loss, by which gradients and residuals are multiplied."""

from __future__ import annotations

import weakref
from typing import Literal, Protocol

import torch

from psnode.ddp.surroundings import scaler_in_use


class Scaler(Protocol):
    """An object that knows the factor by which the loss is multiplied, such as torch.amp.GradScaler."""

    def get_scale(self) -> float:
        """Return the factor of the next step."""


class LossScale:
    """The scale of the loss in the last step, and its change before the next step.

    `scaler`: the object that knows the scale. None means the GradScaler, if any, that has scaled a loss before the first
    bucket arrives. False means that the loss is not scaled.
    """

    def __init__(self, scaler: Scaler | Literal[False] | None) -> None:
        self._named, self._seeks = scaler or None, scaler is None
        self._found: weakref.ref[torch.amp.GradScaler] | None = None  # weak, since the program owns the scaler and may replace it
        if isinstance(scaler, torch.amp.GradScaler):
            self._named, self._found = None, weakref.ref(scaler)
        self.last: float | None = None  # the scale by which residuals are multiplied now; None before the first step

    def seek(self) -> None:
        """Find the GradScaler that the program uses, unless `scaler` named one or is False."""
        if self._seeks:
            scaler = scaler_in_use()
            self._found = None if scaler is None else weakref.ref(scaler)

    def change(self) -> float:
        """Return the factor by which the caller must multiply residuals before the next step."""
        if self._found is not None and self._found() is None:
            self.seek()
        scaler = self._named if self._found is None else self._found()
        now = 1.0 if scaler is None else float(scaler.get_scale())
        last, self.last = self.last or now, now
        return now / last
