"""Eigenvectors of a symmetric float32 matrix by LAPACK's float32 routines, for callers that need only a few of them.

numpy.linalg decomposes float32 matrices in float64, which takes twice the time. Therefore this module calls the OpenBLAS in
numpy's wheels directly. The matrix is reduced to tridiagonal form (ssytrd), whose eigenvectors are found by divide and conquer
(sstedc). Only the eigenvectors needed are transformed back (sormtr). If numpy uses another LAPACK, numpy.linalg.eigh is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from psnode.codecs.arrays import Float64s, Floats, Int64s
from psnode.codecs.lowrank.blas_threads import library

_BLOCK = 64  # columns per block of LAPACK's blocked routines, for a workspace of optimal size


@dataclass(frozen=True, slots=True)
class Eigenbasis:
    """An orthonormal basis of eigenvectors, with float32's precision. The vectors are computed when they are needed."""

    squares: Float64s
    """(n,), descending: the eigenvalues, each right to about 2^-24 of the largest."""
    vectors: Callable[[Int64s], Float64s]
    """The eigenvectors with these indices: (k, n), of unit length."""


def eigenbasis(matrix: Floats) -> Eigenbasis:
    """Return the eigenbasis of a symmetric `matrix` (n, n), float32, finite and contiguous. The matrix is overwritten."""
    return _decomposed(matrix) if matrix.size and _routine("ssytrd") else _by_numpy(matrix)


def _by_numpy(matrix: Floats) -> Eigenbasis:
    squares, columns = np.linalg.eigh(matrix.astype(np.float64))
    return Eigenbasis(squares[::-1], lambda chosen: columns.T[::-1][chosen])


def _decomposed(matrix: Floats) -> Eigenbasis:
    """Return the eigenbasis by LAPACK, which stores matrices by columns.

    numpy stores them by rows, which is the same for a symmetric matrix.
    """
    n = len(matrix)
    squares, beside, scales = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32)
    _call("ssytrd", b"L", n, matrix, n, squares, beside, scales, np.empty(_BLOCK * n, np.float32), _BLOCK * n)
    inner = np.empty((n, n), np.float32)
    room, integers = 1 + 4 * n + n * n, 3 + 5 * n
    work = np.empty(room, np.float32), room, np.empty(integers, np.int64), integers
    _call("sstedc", b"I", n, squares, beside, inner, n, *work)

    def vectors(chosen: Int64s) -> Float64s:
        turned = np.ascontiguousarray(inner[::-1][chosen])
        if len(turned):
            given = n, len(turned), matrix, n, scales, turned, n, np.empty(_BLOCK * n, np.float32), _BLOCK * n
            _call("sormtr", b"L", b"L", b"N", *given)
        found = turned.astype(np.float64)
        return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))

    return Eigenbasis(squares[::-1].astype(np.float64), vectors)


def _call(name: str, *arguments: bytes | int | Floats | Int64s) -> None:
    """Call a LAPACK routine. Raises numpy.linalg.LinAlgError if the routine's last argument reports a failure."""
    done = ctypes.c_int64()
    lengths = [ctypes.c_size_t(1) for each in arguments if isinstance(each, bytes)]  # Fortran's hidden lengths of strings
    routine = _routine(name)
    assert routine is not None
    routine(*map(_reference, arguments), ctypes.byref(done), *lengths)
    if done.value:
        raise np.linalg.LinAlgError(f"LAPACK's {name} failed with {done.value}")


def _reference(argument: bytes | int | Floats | Int64s) -> Any:
    if isinstance(argument, bytes):
        return argument
    return ctypes.byref(ctypes.c_int64(argument)) if isinstance(argument, int) else ctypes.c_void_p(argument.ctypes.data)


@cache
def _routine(name: str) -> Callable[..., None] | None:
    """Return the routine of numpy's OpenBLAS with 64-bit integers, or None if numpy uses another LAPACK."""
    return next((getattr(library(), full) for full in (f"scipy_{name}_64_", f"{name}_64_") if hasattr(library(), full)), None)
