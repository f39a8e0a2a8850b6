"""The one way to compile a kernel: cached on disk, without the GIL, without reassociation of floating point.

The cache is renewed when the module of a kernel changes, not when one that it calls into does: while changing a shared
function, delete psnode/codecs/__pycache__.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """`function`, compiled at its first call. No fastmath: results are equal on every machine."""
    return cast(F, njit(cache=True, nogil=True, error_model="numpy")(function))


def inlined(function: F) -> F:
    """A small `function` for use inside kernels. It becomes part of its caller: a call would count references to its arrays."""
    return cast(F, njit(inline="always", error_model="numpy")(function))
