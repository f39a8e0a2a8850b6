"""The one way to compile a kernel: cached on disk, without the GIL, without reassociation of floating point.

Numba renews what it has cached when the module of a kernel changes, but a kernel contains what it calls, too: a pull that
changes the random words alone would leave codecs that still draw the old ones. So what is cached here counts for the sources of
all kernels as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import xxhash
from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

_SOURCES = Path(__file__).parent.parent
_SIGNS = (b"kernels.jit import", b"from numba")  # one of them is in every module with something compiled


def kernel(function: F) -> F:
    """`function`, compiled at its first call. No fastmath: results are equal on every machine."""
    dispatcher = njit(cache=True, nogil=True, error_model="numpy")(function)
    index = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if index is not None:  # with NUMBA_DISABLE_JIT there is no dispatcher
        index._source_stamp = index._source_stamp, sources()
    return cast(F, dispatcher)


def inlined(function: F) -> F:
    """A small `function` for use inside kernels. It becomes part of its caller: a call would count references to its arrays."""
    return cast(F, njit(inline="always", error_model="numpy")(function))


@cache
def sources() -> str:
    """A digest of all modules under psnode/codecs with something compiled."""
    digest = xxhash.xxh3_128()
    for path in sorted(_SOURCES.rglob("*.py")):
        text = path.read_bytes()
        if any(sign in text for sign in _SIGNS):
            digest.update(text)
    return digest.hexdigest()
