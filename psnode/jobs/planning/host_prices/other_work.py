"""Work that fills the caches with other data, as the passes of a step do, and the processor time of a process's other threads."""

from __future__ import annotations

import itertools
import time

import numpy as np

_BYTES, _BLOCKS = 16 << 20, 64
_SECONDS = 5e-3


class OtherWork:
    """Work that takes kernels and tables of others out of the caches, since it reads and writes many bytes."""

    def __init__(self) -> None:
        self._blocks = np.zeros((_BLOCKS, _BYTES // _BLOCKS // 4), np.float32)

    def once(self) -> None:
        """Read and write all bytes once."""
        self._blocks += 1

    def for_a_step(self) -> None:
        """Keep a core at work for about as long as a short step takes, so that other threads sleep meanwhile."""
        end = time.perf_counter() + _SECONDS
        for block in itertools.cycle(self._blocks):
            block += 1
            if time.perf_counter() >= end:
                return


def seconds_of_other_threads() -> float:
    """Return the processor seconds that all threads of this process except the calling one have used."""
    return time.process_time() - time.thread_time()
