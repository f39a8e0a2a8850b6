"""The one way to compile a kernel: cached on disk, without the GIL, without reassociation of floating point.

Numba renews a cached kernel when its module changes, but a kernel contains the functions that it calls, too: a pull that
changes the random words alone would leave codecs that still draw the old ones. So a cached kernel counts for the sources of
all kernels as they are.

A cache holds machine code, which is executed. One that users may write who could not write the sources is not used, and Numba may
find no directory that this user can write: kernels are compiled in every process then.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import xxhash
from numba import njit
from numba.core.caching import NullCache

F = TypeVar("F", bound=Callable[..., Any])

_SOURCES = Path(__file__).parent.parent
_SIGNS = (b"kernels.jit import", b"kernels.llvm.", b"from numba")  # one of them is in every module with something compiled
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}  # nothing in C calls a kernel


def kernel(function: F) -> F:
    """`function`, compiled at its first call. No fastmath: results are equal on every machine."""
    try:
        dispatcher: Any = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # neither the sources' directory nor the user's nor NUMBA_CACHE_DIR can be written
        return cast(F, njit(**_OPTIONS)(function))
    index = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if index is not None:  # with NUMBA_DISABLE_JIT there is no dispatcher
        # The version is read before the rest, which names types of arguments whose modules may have gone since.
        index._version = index._version, sources()
        if open_to_others(Path(dispatcher._cache.cache_path), Path(__file__)):
            dispatcher._cache = NullCache()
    return cast(F, dispatcher)


def inlined(function: F) -> F:
    """A small `function` for use inside kernels. It becomes part of its caller: a call would count references to its arrays."""
    return cast(F, njit(inline="always", error_model="numpy")(function))


@cache
def open_to_others(directory: Path, trusted: Path) -> bool:
    """True if a user other than root, this one and the owner of the file `trusted` may write into `directory`.

    So it is where the directory above is open, unless that has the sticky bit, which protects its entries.
    """
    owner = trusted.stat()
    users, groups = {0, os.geteuid(), owner.st_uid}, {os.getegid(), owner.st_gid}
    for place, sticky in ((directory, False), (directory.parent, True)):
        try:
            found = place.stat()
        except FileNotFoundError:  # it will be made, by this user
            continue
        theirs = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid not in groups)
        if found.st_uid not in users or (theirs and not (sticky and found.st_mode & stat.S_ISVTX)):
            return True
    return False


@cache
def sources() -> str:
    """A digest of all modules under psnode/codecs with something compiled."""
    digest = xxhash.xxh3_128()
    for path in sorted(_SOURCES.rglob("*.py")):
        text = path.read_bytes()
        if any(sign in text for sign in _SIGNS):
            digest.update(text)
    return digest.hexdigest()
