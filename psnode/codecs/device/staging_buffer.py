"""Pinned host memory for copies to and from a device. Copies through it need no other buffer."""

from __future__ import annotations

import torch

from psnode.codecs.arrays import Bytes


class StagingBuffer:
    """A buffer of `nbytes` bytes, for one direction and one thread. The memory is allocated at the first use.

    Copies are put on the calling thread's current stream of `device`, even if another device is current. Methods that wait do
    so only for these copies, not for later work on the stream.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._nbytes, self._device = nbytes, device
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._memory: torch.Tensor | None = None

    def down(self, source: torch.Tensor) -> Bytes:
        """Copy `source` (uint8 on the device) to the buffer, and return its bytes. They are valid until the next call."""
        target = self._held()[: source.numel()]
        target.copy_(source, non_blocking=True)
        self._copied.record(torch.cuda.current_stream(self._device))
        self._copied.synchronize()
        return target.numpy()

    def free(self, nbytes: int) -> Bytes:
        """Return the first `nbytes` bytes of the buffer for writing. Waits until earlier copies to the device are complete."""
        self._copied.synchronize()
        return self._held()[:nbytes].numpy()

    def up(self, target: torch.Tensor) -> None:
        """Copy the first bytes of the buffer to `target` (uint8 on the device), filling it. Does not wait."""
        target.copy_(self._held()[: target.numel()], non_blocking=True)
        self._copied.record(torch.cuda.current_stream(self._device))

    def _held(self) -> torch.Tensor:
        if self._memory is None:
            self._memory = torch.empty(self._nbytes, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        return self._memory
