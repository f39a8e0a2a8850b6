"""Vectors whose pages take room once they are written."""

from __future__ import annotations

import mmap

import numpy as np

from psnode.codecs.arrays import Floats


def untouched(size: int) -> Floats:
    """`size` zeros of float32 in pages of their own.

    Not numpy's or torch's zeros: from memory that the process has freed before these are written, all of them, at once.
    """
    return np.frombuffer(mmap.mmap(-1, 4 * size), np.float32) if size else np.zeros(0, np.float32)
