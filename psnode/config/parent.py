"""A signal that ends a process when its parent has ended."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_PDEATHSIG = 1
_C = ctypes.CDLL(None) if sys.platform == "linux" else None


def follow_parent(number: int) -> None:
    """Make the system send signal `number` to this process when its parent ends. Does nothing on systems other than Linux."""
    if _C is not None:
        _C.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
