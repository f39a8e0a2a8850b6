"""Bringing gradients from a device to the host while it goes on computing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class Coming(Protocol):
    """A copy under way."""

    def synchronize(self) -> None:
        """Return when it is complete."""


Fetch = Callable[[torch.Tensor, torch.Tensor], Coming]  # (source on the device, target on the host)


class SideStream:
    """Copies from a CUDA device to pinned memory in a stream of its own, one after another in the order of the calls.

    A copy waits for the work given to the calling thread's current stream before the call, and for nothing after it: the gradient
    of a layer leaves while the layers before it are still computed.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def __call__(self, source: torch.Tensor, target: torch.Tensor) -> Coming:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            source.record_stream(self._stream)  # its memory is not used again before the copy is over
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(self._stream)
        return done


class OnDemand:
    """A tensor that stays on its device, to be copied to `target` on the host at its first use on the host."""

    def __init__(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._source, self._target = source, target
        self._computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._computed.record()

    def ready(self) -> torch.Tensor:
        """The tensor, for work that is given to the calling thread's current stream: it waits for the work that computes it."""
        stream = torch.cuda.current_stream()
        stream.wait_event(self._computed)
        self._source.record_stream(stream)  # its memory is not used again before that work is over
        return self._source

    def synchronize(self) -> None:
        """Copy it."""
        self._target.copy_(self.ready())
