"""Work that fills the caches with other data, as the passes of a step do, and the processor time of a process's other threads."""

from __future__ import annotations

import time

import numpy as np

_BYTES = 16 << 20
_SECONDS = 5e-3


class OtherWork:
    """Work that takes kernels and tables of others out of the caches, since it reads and writes many bytes."""

    def __init__(self) -> None:
        self._values = np.zeros(_BYTES // 4, np.float32)

    def once(self) -> None:
        """Read and write all bytes once."""
        self._values += 1

    def a_while(self) -> None:
        """Keep a core at work for about as long as a short step takes, so that other threads sleep meanwhile."""
        end = time.perf_counter() + _SECONDS
        while time.perf_counter() < end:
            self.once()


def seconds_of_other_threads() -> float:
    """Return the processor seconds that all threads of this process except the calling one have used."""
    return time.process_time() - time.thread_time()
