"""Host memory that bytes pass through on their way from a device and to it: pinned, so that copies need no other."""

from __future__ import annotations

import torch

from psnode.codecs.arrays import Bytes


class StagingBuffer:
    """`nbytes` bytes, to be used in one direction by one thread. Memory is taken at the first use.

    Copies are given to the calling thread's current stream of `device`, whichever device is its current one. Only they are waited
    for, and nothing that is given to it later.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self._nbytes, self._device = nbytes, device
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._memory: torch.Tensor | None = None

    def down(self, source: torch.Tensor) -> Bytes:
        """The bytes of `source`, uint8 on the device, valid until the next call."""
        target = self._held()[: source.numel()]
        target.copy_(source, non_blocking=True)
        self._copied.record(torch.cuda.current_stream(self._device))
        self._copied.synchronize()
        return target.numpy()

    def free(self, nbytes: int) -> Bytes:
        """The first bytes, to be written to; waits until those that went up before have left."""
        self._copied.synchronize()
        return self._held()[:nbytes].numpy()

    def up(self, target: torch.Tensor) -> None:
        """Copy as many of the first bytes to `target`, uint8 on the device; does not wait."""
        target.copy_(self._held()[: target.numel()], non_blocking=True)
        self._copied.record(torch.cuda.current_stream(self._device))

    def _held(self) -> torch.Tensor:
        if self._memory is None:
            self._memory = torch.empty(self._nbytes, dtype=torch.uint8, pin_memory=self._device.type == "cuda")
        return self._memory
