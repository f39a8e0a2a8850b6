"""MPI_Init_thread and MPI_Finalize, called without holding Python's GIL.

Both functions return only when all ranks have called them. mpi4py would hold the GIL during this time, so no other thread could
notice that a deadline has passed. Therefore this module calls the C functions of the MPI library directly.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from psnode.errors import TransportError


def init_thread(mpi: Any) -> int:
    """Initialise MPI for threads that never call it simultaneously, and return the level of thread support that MPI grants."""
    function = _function(mpi, "MPI_Init_thread")
    if function is None:
        level: int = mpi.Init_thread(mpi.THREAD_SERIALIZED)
        return level
    granted = ctypes.c_int()
    _check("MPI_Init_thread", function(None, None, ctypes.c_int(mpi.THREAD_SERIALIZED), ctypes.byref(granted)))
    return granted.value


def finalize(mpi: Any) -> None:
    """Finalise MPI."""
    function = _function(mpi, "MPI_Finalize")
    if function is None:
        mpi.Finalize()
    else:
        _check("MPI_Finalize", function())


def _function(mpi: Any, name: str) -> Callable[..., int] | None:
    """Return a C function of the MPI library that mpi4py has loaded, or None if the library lacks it."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(mpi.__file__), name)
    except (OSError, AttributeError):
        return None
    return function


def _check(name: str, code: int) -> None:
    if code:
        raise TransportError(f"{name} failed with code {code}")
