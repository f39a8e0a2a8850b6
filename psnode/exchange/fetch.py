"""Copies of gradients from a device to the host, while the device continues to compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class Coming(Protocol):
    """Copy in progress from a device to the host."""

    def synchronize(self) -> None:
        """Block until the copy is complete."""


Fetch = Callable[[torch.Tensor, torch.Tensor], Coming]  # (source on the device, target on the host)


class SideStream:
    """Copier from a CUDA device to pinned memory. It has a CUDA stream of its own and copies in the order of the calls.

    A copy waits only for the work that was submitted to the calling thread's current stream before the call. So the gradient
    of a layer is copied while the backward pass computes the next layers.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, source: torch.Tensor, target: torch.Tensor) -> Coming:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            source.record_stream(self._stream)  # so that torch does not reuse the memory of `source` before the copy is done
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        return done


class OnDemand:
    """Tensor that stays on its device. It is copied to `target`, on the host, only when the host needs it."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._source, self._target = source, target
        self._computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._computed.record()

    def ready(self) -> torch.Tensor:
        """Return the tensor on its device, for work that is then submitted to the calling thread's current stream.

        The stream waits until the tensor is computed.
        """
        stream = torch.cuda.current_stream()
        stream.wait_event(self._computed)
        self._source.record_stream(stream)  # so that torch does not reuse the tensor's memory before this work is done
        return self._source

    def synchronize(self) -> None:
        """Copy the tensor to the host."""
        self._target.copy_(self.ready())
