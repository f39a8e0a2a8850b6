"""Copies, on a device, of vectors on the host, which are called their homes.

The device computes with the copies and changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from psnode.tasks.device import device_errors

told = device_errors("the size of the model, or leave out --gpu-master")


class DeviceCopies:
    """Copies on `device` of `homes`, which are flat float32 vectors. The copies change, and the homes keep old values.

    To load values, write them to a home and then call `renew`. To read the newest values, call `copy`. Tensors that share
    memory count as one home.
    """

    def __init__(self, homes: Sequence[torch.Tensor], device: torch.device) -> None:
        self._homes = list({home.data_ptr(): home for home in homes}.values())
        self._there = {home.data_ptr(): home.to(device, copy=True) for home in self._homes}

    def of(self, home: torch.Tensor) -> torch.Tensor:
        """Return the copy of `home` on the device."""
        return self._there[home.data_ptr()]

    @told
    def copy(self, home: torch.Tensor) -> torch.Tensor:
        """Return the newest values of `home` in new memory on the host. The call waits for queued work of the device."""
        return torch.empty_like(home).copy_(self.of(home))

    def copies(self, homes: Sequence[torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        """Copy the newest values of `homes` to the host. Return a function that finds the newest values of a view.

        The function maps a contiguous view of a home to the same view of its copy on the host, and returns other tensors
        unchanged.
        """
        found = [(home, self.copy(home)) for home in homes]

        def moved(view: torch.Tensor) -> torch.Tensor:
            for home, copy in found:
                place = view.data_ptr() - home.data_ptr()
                if view.numel() and 0 <= place < home.nbytes:
                    start = place // home.element_size()
                    return copy[start : start + view.numel()].view(view.shape)
            return view

        return moved

    @told
    def renew(self) -> None:
        """Copy the values of all homes to the device."""
        for home in self._homes:
            self.of(home).copy_(home)
