"""CUDA text compiled as C++ by g++, with a warp as a vector of 32 lanes, and called like the other kernels."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import xxhash

from psnode.codecs.device.cupy.row_kernels import standalone
from psnode.codecs.rows.cuda.text import HEADERS
from psnode.codecs.rows.formula import FIRST_SUM

GXX = shutil.which("g++")
KEPT = Path(__file__).parents[2] / ".cache" / "kernels"  # libraries, for all processes of tests
FLAGS = ["-std=c++17", "-O0", "-fwrapv", "-ffp-contract=off", "-fPIC", "-shared", "-Wno-psabi", "-Wno-ignored-attributes"]


@functools.cache
def compiler() -> bytes:
    """Return everything on which a library depends besides its text: the version of g++, its options, and the header host.h."""
    version = subprocess.run([str(GXX), "-v"], capture_output=True, check=True).stderr
    return version + " ".join(FLAGS).encode() + (HEADERS / "host.h").read_bytes()


@functools.cache
def library_of(text: str) -> bytes:
    """Return the file of the library of the kernels in `text`. It is built unless an earlier process has built it."""
    whole = standalone(text)
    kept = KEPT / f"{xxhash.xxh3_128_hexdigest(compiler() + whole.encode())}.so"
    with contextlib.suppress(FileNotFoundError):
        return kept.read_bytes()
    KEPT.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=KEPT) as folder:
        source, library = Path(folder, "kernels.cpp"), Path(folder, "kernels.so")
        source.write_text(whole)
        command = [str(GXX), *FLAGS, f"-I{HEADERS}", str(source), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:3000]
        os.replace(library, kept)  # whole at any moment
    return kept.read_bytes()


@functools.cache
def build(text: str) -> ctypes.CDLL:
    """Return the library of the kernels in `text`."""
    with TemporaryDirectory() as folder:
        library = Path(folder, "kernels.so")
        library.write_bytes(library_of(text))
        return ctypes.CDLL(str(library))


uint32 = ctypes.c_uint32


def address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data if array.size else None)


def starts_of(packed: np.ndarray, size: int) -> np.ndarray:
    """Return the positions at which blocks of 20480 codes begin, and the end of the last block."""
    starts = [0]
    for _ in range(size // 20480):
        listed = int(packed[starts[-1] : starts[-1] + 2].view(np.uint16)[0])
        starts.append(starts[-1] + (4098 if listed == 65535 else 2 + 2 * listed))
    return np.array(starts, np.uint32)


class Hosted:
    """Kernels of a library from `build`, with the interface of psnode.codecs.rows.coder.Functions."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.varies, self.fits = library, hasattr(library, "place_blocks"), hasattr(library, "measure")

    def survey(self, x: np.ndarray, tops: np.ndarray) -> bool:
        padded = np.resize(x, -(-x.size // 512) * 512)  # repeated values change no extreme
        self.library.survey(address(padded), address(tops), ctypes.c_uint32(padded.size // 512))
        return bool(tops[0] < 0x7F800000)

    def sum_up(self, x: np.ndarray, key: Any, tops: np.ndarray) -> bool:
        """Sum the rows of `x`. In every round each group of 512 numbers becomes one, until one number is left."""
        count, sums = -(-x.size // 512), tops.size // 2 - FIRST_SUM
        padded, parts, done = np.zeros(512 * count, np.float32), np.empty(sums * count), np.array([count], np.uint32)
        padded[: x.size] = x
        arrays = [address(array) for array in (padded, parts, tops, done, key)]
        self.library.sum_rows(*arrays, ctypes.c_uint32(x.size), ctypes.c_uint32(count))
        if hasattr(self.library, "norms"):
            self.library.norms(address(padded), address(parts), ctypes.c_uint32(count))
        while True:
            groups = -(-count // 512)
            folded = np.empty(sums * groups)
            self.library.fold_sums(address(parts), address(folded), *map(ctypes.c_uint32, (count, groups, sums)))
            parts, count = folded, groups
            if groups == 1:
                tops[2 * FIRST_SUM :].view(np.float64)[:] = parts
                return bool(done[0] == -(-x.size // 512))

    def encode(self, x: Any, first: int, key: Any, tops: Any, side: Any, rows: int, packed: Any, error: Any) -> int:
        done = np.array([x.size // 512], np.uint32)
        numbers = [ctypes.c_uint32(number) for number in (first, rows, x.size // 512)]
        if self.varies:
            blocks = ctypes.c_uint32(x.size // 20480)
            rooms, starts = np.empty(8192 * blocks.value, np.uint8), np.empty(blocks.value + 1, np.uint32)
            arrays = [address(array) for array in (x, error, side, rooms, tops, done, key)]
            self.library.encode(*arrays, *numbers, address(starts))
            self.library.place_blocks(address(starts), blocks)
            self.library.copy_blocks(address(rooms), address(starts), address(packed), blocks)
            return int(done[0]) * 512
        if self.fits:
            self.library.measure(*[address(array) for array in (x, side, tops, done, key)], *numbers)
            numbers.append(address(starts := self._places(side, *numbers)))
            assert starts[0] == 0
        arrays = [address(array) for array in (x, error, side, packed, tops, done, key)]
        self.library.encode(*arrays, *numbers)
        return int(done[0]) * 512

    def _places(self, side: Any, first: Any, rows: Any, count: Any) -> np.ndarray:
        """Return the positions at which buckets begin; there are at most as many buckets as rows."""
        starts = np.zeros(count.value + 1, np.uint32)
        self.library.place_buckets(address(side), address(starts), first, rows, count)
        return starts

    def decode(self, side: Any, rows: int, first: int, packed: Any, out: Any, weight: np.float32, adding: bool) -> None:
        numbers = [ctypes.c_uint32(number) for number in (first, rows, out.size // 512)]
        arrays = [address(array) for array in (side, packed, out)]
        places = starts_of(packed, out.size) if self.varies else self._places(side, *numbers) if self.fits else None
        starts = [] if places is None else [address(places)]
        self.library.decode(*arrays, ctypes.c_float(float(weight)), ctypes.c_int(adding), *numbers, *starts)
