"""Temporary restriction of numpy's BLAS to one thread in this process.

psnode divides the cores between processes and between its own threads. If BLAS also starts a thread for every core, threads
wait for each other, and computations on busy cores take 30 times as long. Moreover the results of sums in BLAS depend on the
number of its threads.

OpenBLAS, which numpy's wheels include, is found through numpy's extension module for linear algebra. Any other BLAS keeps its
own settings.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import product
from threading import Lock

_CREATION = Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Context manager that restricts BLAS to one thread. The `with` blocks may be nested and may overlap in several threads.

    The number of BLAS threads is a setting of the process. The first block that is entered sets it to 1, and the last block
    that is left restores it.
    """
    with _CREATION:
        limit = _limit()
    limit.enter()
    try:
        yield
    finally:
        limit.leave()


class _Limit:
    """The restriction of BLAS. It counts the open `with` blocks and stores the number of threads before the first of them."""

    def __init__(self, get: Callable[[], int], put: Callable[[int], object]) -> None:
        self._get, self._put = get, put
        self._lock = Lock()
        self._inside = 0
        self._before = 1

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = self._get()
                self._put(1)
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._put(self._before)


@cache
def library() -> ctypes.CDLL:
    """Return numpy's extension module for linear algebra as a library. It gives access to symbols of numpy's BLAS and LAPACK."""
    from numpy.linalg import _umath_linalg

    return ctypes.CDLL(_umath_linalg.__file__)


@cache
def _limit() -> _Limit:
    """Return the restriction of numpy's OpenBLAS, or a dummy if numpy uses another BLAS.

    OpenBLAS has symbols with different names in some builds.
    """
    for prefix, suffix in product(("scipy_", ""), ("64_", "_64", "")):
        name = f"{prefix}openblas_%s_num_threads{suffix}"
        if hasattr(library(), name % "get") and hasattr(library(), name % "set"):
            return _Limit(getattr(library(), name % "get"), getattr(library(), name % "set"))
    return _Limit(lambda: 1, lambda _: None)
