"""One BLAS thread for a while, for numpy's linear algebra in this process.

psnode divides cores between processes and between its own threads. A BLAS that starts a thread for every core on top of
that makes them wait for each other (30 times slower on busy cores), and its sums depend on their number.

OpenBLAS, which numpy's wheels bring, is found through the extension module that uses it. Any other BLAS keeps its own
settings.
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
    """Within the block BLAS runs in the calling thread; several threads may be inside at once, nested or not.

    The number of BLAS threads belongs to the process: the first to enter lowers it, the last to leave restores it.
    """
    with _CREATION:
        limit = _limit()
    limit.enter()
    try:
        yield
    finally:
        limit.leave()


class _Limit:
    """Number of callers inside, and of threads before them."""

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
    """The extension module of numpy's linear algebra, through which symbols of its BLAS and LAPACK are found."""
    from numpy.linalg import _umath_linalg

    return ctypes.CDLL(_umath_linalg.__file__)


@cache
def _limit() -> _Limit:
    """The limit of numpy's OpenBLAS, whose symbols are renamed by some builds; one without effect if there is none."""
    for prefix, suffix in product(("scipy_", ""), ("64_", "_64", "")):
        name = f"{prefix}openblas_%s_num_threads{suffix}"
        if hasattr(library(), name % "get") and hasattr(library(), name % "set"):
            return _Limit(getattr(library(), name % "get"), getattr(library(), name % "set"))
    return _Limit(lambda: 1, lambda _: None)
