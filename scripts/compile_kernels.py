"""Compile the kernels of all codecs, in one process per core. Each codec is compiled by only one process.

    scripts/compile_kernels.py
    scripts/compile_kernels.py --cold

Without this script, concurrent tests or ranks of a job would all compile a missing kernel. A process ends after a few codecs,
because the compiler keeps about ten megabytes of memory for every kernel. Kernels in the cache are only loaded, which takes
seconds. With --cold, all kernels are compiled, into a folder that is removed at the end, so the printed seconds are those of
the compiler. If several codecs share a kernel, its time counts for the codec that needs it first.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product
from multiprocessing import get_context

import numpy as np

from psnode.codecs import Codec, Payload, available, get_codec
from psnode.codecs.rng import Key
from psnode.codecs.sinks import NOTHING, Added, InnerProducts, Sink, Subtracted
from psnode.codecs.sources import Accumulated, Copied, Difference, Source, Values

KEY = Key.derive(1)
SHAPE = (40, 60)
SIZE = SHAPE[0] * SHAPE[1]
CHAINS = ("qsgd+ans", "dithered+ans", "qsgd+rice", "svd+qsgd", "topk+lss+ans", "topk+sketchml+ans", "randk+bf16", "bf16+zstd")


def sources(x: np.ndarray) -> Iterator[Source]:
    """Yield one source of each kind, for the values `x`."""
    yield Values(x)
    yield Accumulated([(0, x.reshape(-1)[:700]), (900, x.reshape(-1)[900:])], x.copy())
    yield Copied(x, np.empty_like(x))
    yield Difference(x, np.zeros_like(x))


def sinks() -> tuple[Sink, ...]:
    """Return one sink of each kind."""
    return NOTHING, Subtracted(np.zeros(SHAPE, np.float32)), Added(np.zeros(SHAPE, np.float32)), InnerProducts()


def use(codec: Codec) -> None:
    """Call every kernel of `codec`, with writable and with read-only arrays."""
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(np.float32)
    for number, sink in product(range(4), sinks()):
        codec.encode(list(sources(x))[number], KEY, sink=sink)
    error, out = np.empty_like(x), np.zeros_like(x)
    made = codec.encode(x, KEY, error=error, out=np.empty(codec.max_nbytes(SHAPE), np.uint8))
    for payload in (made, Payload.from_bytes(made.to_bytes())):
        codec.decode_add(payload, codec.decode(payload), 0.5)
        codec.decode_add(payload, out, 1.0)
        codec.support(payload)
    if codec.linear:
        codec.merge([made, made])


def compile_all(spec: str) -> tuple[float, str]:
    """Use the codec `spec`, and the contractive form that error feedback uses, so that their kernels are compiled.

    Return the seconds of processor time, and `spec`.
    """
    begin = time.process_time()
    codec = get_codec(spec)
    for form in dict.fromkeys((codec, codec.contractive())):
        use(form)
    return time.process_time() - begin, spec


def main() -> None:
    """Compile the kernels of all codecs, then those of chains of codecs, which have few of their own, and print the seconds."""
    begin, found = time.monotonic(), list[tuple[float, str]]()
    processes = len(os.sched_getaffinity(0))
    with get_context("spawn").Pool(processes, maxtasksperchild=4) as pool:
        for specs in (available(), CHAINS):
            found += pool.imap_unordered(compile_all, specs)  # any free process takes the next codec
    longest = ", ".join(f"{spec} {seconds:.1f} s" for seconds, spec in sorted(found, reverse=True)[:10])
    total = sum(seconds for seconds, _ in found)
    print(f"kernels of {len(found)} codecs: {time.monotonic() - begin:.0f} s, {total:.0f} s of processor time; {longest}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cold", action="store_true", help="compile everything, into a folder that is removed")
    with tempfile.TemporaryDirectory() if parser.parse_args().cold else nullcontext() as folder:
        if folder is not None:
            os.environ["NUMBA_CACHE_DIR"] = folder  # read by the processes that compile
        main()
