"""Compilation of a step's kernels before the first step: once per machine, in parallel processes, with a cache on disk.

A step consists of pieces, each with kernels of its own: gradients are coded and added, weights are updated, coded and read. A
piece's kernels are compiled by running the piece on a few values like those of the job. If the kernels are in Numba's cache,
they are loaded instead. If possible, kernels are compiled in child processes, which import neither torch nor MPI. On each host
one rank compiles, and the other ranks wait for it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numba.core.event as numba_events
from filelock import BaseFileLock, FileLock
from numba.core.caching import NullCache

import psnode
from psnode.codecs.kernels.finite import add_scaled
from psnode.codecs.registry import brief, known_codec
from psnode.config import Config
from psnode.config.cores import usable_cores
from psnode.config.plain_json import to_json
from psnode.exchange.kernel_pieces import PART, Piece, pieces_of, run_piece
from psnode.plans.coding import Coding
from psnode.plans.groups import IDENTITY

_LOG = logging.getLogger(__name__)

_COMPILES = "numba:compile"
ANEW = "in every process anew (to keep them, set NUMBA_CACHE_DIR to a directory that you can write and others cannot)"
_PATIENCE = 600.0  # seconds to wait for another rank of this host
_LOCK = ".psnode-kernels.lock"


class _ColdError(Exception):
    """Raised in place of compiling a kernel that is not in the cache."""


class _Watch(numba_events.Listener):
    """Listener that counts the kernels that this thread compiles. A kernel compiled as part of another one does not count.

    With `refuses`, it raises _ColdError instead when a kernel would be compiled.
    """

    def __init__(self, *, refuses: bool) -> None:
        self.count = 0
        self._refuses, self._thread, self._depth = refuses, threading.get_ident(), 0

    def on_start(self, event: Any) -> None:
        """Count a kernel whose compilation begins, or refuse to compile it."""
        if threading.get_ident() != self._thread:
            return
        if self._refuses:
            raise _ColdError
        self.count += not self._depth
        self._depth += 1

    def on_end(self, event: Any) -> None:
        """Record that the compilation of a kernel has ended, with or without success."""
        if threading.get_ident() == self._thread:
            self._depth -= not self._refuses


@contextlib.contextmanager
def watched(*, refuses: bool = False) -> Iterator[_Watch]:
    """Return a context that yields a listener, which counts the kernels compiled inside the context. `refuses`: see _Watch."""
    watch = _Watch(refuses=refuses)
    numba_events.register(_COMPILES, watch)  # type: ignore[no-untyped-call]
    try:
        yield watch
    finally:
        numba_events.unregister(_COMPILES, watch)  # type: ignore[no-untyped-call]


def prepare(coding: Coding, config: Config) -> None:
    """Load or compile all kernels that a step needs, and log those that had to be compiled."""
    pieces = pieces_of(coding, config)
    if missing := [piece for piece in pieces if not _is_cached(piece)]:
        with _alone():
            missing = [piece for piece in missing if not _is_cached(piece)]
            if missing:
                _compile(missing)


def _is_cached(piece: Piece) -> bool:
    """Return True if all kernels of `piece` are in the cache. In this case the call also loads them."""
    try:
        with watched(refuses=True):
            _load(piece)
    except _ColdError:
        return False
    return True


@cache
def _load(piece: Piece) -> None:
    """Run `piece`, so that this process loads and keeps the piece's kernels. Later calls for the same piece do nothing."""
    run_piece(piece)


def _compile(pieces: Sequence[Piece]) -> None:
    start, count = time.perf_counter(), 0
    _LOG.info("compiling kernels, %s, in %d pieces", ANEW if _nothing_is_kept() else "once on this machine", len(pieces))
    for done, (piece, kernels) in enumerate(_compiled(pieces), 1):
        count += kernels
        if piece.codec != IDENTITY:
            what = piece.what if piece.what != PART else f"{piece.what} {piece.rule[0] + 1}"
            _LOG.info("compiling kernels: %d of %d: %s, %s", done, len(pieces), what, brief(known_codec(piece.codec)))
    with watched() as watch:
        for piece in pieces:
            _load(piece)
    _LOG.info("compiled %d kernels in %.1f s", count + watch.count, time.perf_counter() - start)


def _compiled(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, int]]:
    """Compile `pieces`, in several processes if possible.

    Yield each piece when it is done, with its number of compiled kernels.
    """
    jobs = _jobs(pieces)
    processes = min(len(jobs), usable_cores())
    if processes < 2 or _nothing_is_kept():
        for piece in pieces:
            with watched() as watch:
                run_piece(piece)
            yield piece, watch.count
        return
    done: queue.SimpleQueue[tuple[Piece, int]] = queue.SimpleQueue()
    waiting: queue.SimpleQueue[Sequence[Piece] | None] = queue.SimpleQueue()
    parts = sum(piece.what == PART for piece in pieces)
    divided = {name for piece in pieces if piece.what == PART for name in _stages(piece)}
    held = [job for job in jobs if job[0].what != PART and any(divided & _stages(piece) for piece in job)]
    for job in jobs:
        if job not in held:
            waiting.put(job)
    children = [_child() for _ in range(processes)]
    try:
        for child in children:
            threading.Thread(target=_feed, args=(child, waiting, done), daemon=True).start()
        for _ in pieces:
            if not parts:
                while held:
                    waiting.put(held.pop(0))
            piece, kernels = done.get()
            parts -= piece.what == PART
            yield piece, kernels
    finally:
        for child in children:
            waiting.put(None)
            child.kill()
            child.communicate()


def _jobs(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Return `pieces` divided into jobs, which may be compiled in parallel.

    Pieces that share stages of codecs also share kernels. They form one job, since two jobs would both compile the shared
    kernels. Each part of a codec is a job of its own, and these jobs come first. `_compiled` begins other jobs with the same
    stages when all parts are done.
    """
    parts = [[piece] for piece in pieces if piece.what == PART]
    jobs: list[tuple[set[str], list[Piece]]] = []
    for piece in pieces:
        if piece.what == PART:
            continue
        ids = _stages(piece)
        akin = [job for job in jobs if job[0] & ids]
        joined = ids.union(*(names for names, _ in akin)), [*(each for _, job in akin for each in job), piece]
        jobs = [*(job for job in jobs if not job[0] & ids), joined]
    return [*parts, *(job for _, job in jobs)]


def _stages(piece: Piece) -> set[str]:
    return {stage.id for stage in known_codec(piece.codec).spec.stages}


def _feed(
    child: subprocess.Popen[str], waiting: queue.SimpleQueue[Sequence[Piece] | None], done: queue.SimpleQueue[tuple[Piece, int]]
) -> None:
    """Let the process `child` compile the pieces of waiting jobs until None comes instead of a job.

    A piece that `child` cannot compile counts as done.
    """
    assert child.stdin is not None and child.stdout is not None
    while (job := waiting.get()) is not None:
        for piece in job:
            kernels = 0
            with contextlib.suppress(OSError, ValueError):
                child.stdin.write(to_json(piece) + "\n")
                child.stdin.flush()
                kernels = int(child.stdout.readline() or 0)
            done.put((piece, kernels))


def _child() -> subprocess.Popen[str]:
    paths = [str(Path(psnode.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-c", "from psnode.exchange.compilation import serve; serve()"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip


def serve() -> None:
    """Compile the pieces that arrive on standard input, one per line. Answer each with its number of compiled kernels."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    for line in sys.stdin:
        with watched() as watch, contextlib.suppress(Exception):  # the parent repeats the piece and raises
            run_piece(Piece.parse(json.loads(line)))
        print(watch.count, flush=True)


def _nothing_is_kept() -> bool:
    """Return True if compiled kernels are not cached, because no directory was found for them or Numba is switched off.

    psnode.codecs.kernels.jit chooses the directory.
    """
    return isinstance(getattr(add_scaled, "_cache", NullCache()), NullCache)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Return a context that holds the lock of the cache, so that no other process compiles kernels for it at the same time.

    If the cache cannot be locked, the context holds no lock.
    """
    lock: BaseFileLock | None = None
    dispatcher: Any = add_scaled
    if not _nothing_is_kept():
        with contextlib.suppress(OSError):  # Timeout is an OSError
            lock = FileLock(Path(dispatcher._cache.cache_path) / _LOCK, timeout=_PATIENCE, fallback_to_soft=False)
            lock.acquire()
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
