"""Compilation of kernels. Kernels are cached on disk, release the GIL, and do not reorder floating-point operations.

Numba recompiles a cached kernel when the kernel's module changes. But a kernel also contains the functions that it calls. For
example, after an update that changes only the module of random words, codecs would still draw the old words. A cached kernel is
therefore valid only for the current sources of all kernels.

A cache holds machine code, which is executed. Therefore a cache is not used if users who cannot write to the sources can write
to the cache. If Numba finds no directory that this user can write to, every process compiles the kernels anew.
"""

from __future__ import annotations

import gc
import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import xxhash
from numba import njit
from numba.core import event
from numba.core.caching import NullCache

F = TypeVar("F", bound=Callable[..., Any])

_SOURCES = Path(__file__).parent.parent
_SIGNS = (b"kernels.jit import", b"kernels.llvm.", b"from numba")  # every module with compiled code contains one of these
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}  # C code never calls a kernel


class _Uncollected(event.Listener):
    """Pauses the garbage collector while a function is compiled. The collector would take a tenth of the time.

    Events are nested like calls, and only one thread at a time compiles.
    """

    def __init__(self) -> None:
        self.depth, self.paused = 0, False

    def on_start(self, _: event.Event) -> None:
        """Pause the collector, unless another function is already being compiled or the program has disabled the collector."""
        if not self.depth and gc.isenabled():
            gc.disable()
            self.paused = True
        self.depth += 1

    def on_end(self, _: event.Event) -> None:
        """Resume the collector when the outermost compilation ends."""
        self.depth -= 1
        if not self.depth and self.paused:
            gc.enable()
            self.paused = False


event.register("numba:compile", _Uncollected())  # type: ignore[no-untyped-call]


def kernel(function: F) -> F:
    """Return `function` as a kernel, which is compiled at its first call.

    It is compiled without fastmath, so that results are equal on every machine.
    """
    try:
        dispatcher: Any = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # no write access to the sources' directory, the user's cache or NUMBA_CACHE_DIR
        return cast(F, njit(**_OPTIONS)(function))
    index = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if index is not None:  # with NUMBA_DISABLE_JIT there is no dispatcher
        # The version is read before the rest, which names types of arguments whose modules may no longer exist.
        index._version = index._version, sources()
        if open_to_others(Path(dispatcher._cache.cache_path), Path(__file__)):
            dispatcher._cache = NullCache()
    return cast(F, dispatcher)


def inlined(function: F) -> F:
    """Return a small `function` compiled for inlining into kernels. A call would count references to the arrays that it takes."""
    return cast(F, njit(inline="always", error_model="numpy")(function))


@cache
def open_to_others(directory: Path, trusted: Path) -> bool:
    """Return True if an untrusted user can write to `directory`.

    Root, this user and the owner of the file `trusted` are trusted. The parent of `directory` is also checked: if an untrusted
    user could write to it, `directory` could be replaced, unless the sticky bit protects its entries.
    """
    owner = trusted.stat()
    users, groups = {0, os.geteuid(), owner.st_uid}, {os.getegid(), owner.st_gid}
    for place, sticky in ((directory, False), (directory.parent, True)):
        try:
            found = place.stat()
        except FileNotFoundError:  # this user will create it
            continue
        theirs = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid not in groups)
        if found.st_uid not in users or (theirs and not (sticky and found.st_mode & stat.S_ISVTX)):
            return True
    return False


@cache
def sources() -> str:
    """Return a digest of the sources of all modules under psnode/codecs that contain compiled code."""
    digest = xxhash.xxh3_128()
    for path in sorted(_SOURCES.rglob("*.py")):
        text = path.read_bytes()
        if any(sign in text for sign in _SIGNS):
            digest.update(text)
    return digest.hexdigest()
