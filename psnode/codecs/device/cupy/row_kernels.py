"""CUDA kernels on a device. Their text is compiled by NVRTC through CuPy and cached on disk. Callers choose the stream.

CuPy's RawModule passes `-ftz=true` to NVRTC after the caller's options, and the last option counts. With this option, numbers
below 2^-126 would become zero, and payloads would differ from those of the CPU. Therefore, CuPy's compiler is called without
this option, and RawModule loads the result. The caller allocates all memory, and the kernels take addresses. This code has not
yet run on a GPU. Tests run it on a substitute for CuPy.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import xxhash

from psnode.codecs.rows.compiled import directory, write_whole
from psnode.codecs.rows.cuda.text import HEADERS
from psnode.codecs.rows.formula import FIRST_SUM, rows_of
from psnode.errors import ConfigurationError, in_one_line, installing

OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
_BUCKET = re.compile(r"^#define BUCKET_ROWS (\d+)u$", re.MULTILINE)
_INCLUDE = re.compile(r'^#include "(?!host\.h)(\w+\.h)"$', re.MULTILINE)
_THREADS, _ROWS_PER_BLOCK, _MOST_BLOCKS = 256, 8, 65535
BLOCK_ROWS, ROOM = 40, 8192  # of packings in blocks: rows of a block, and bytes of scratch per block, as in sparse.h


def import_cupy() -> Any:
    """Return the module cupy. Raise ConfigurationError, with a remedy, if it is missing or broken."""
    try:
        import cupy
    except Exception as error:  # an import that fails half-way can raise any exception
        raise ConfigurationError(f"CuPy cannot be imported ({in_one_line(error)}): {installing('gpu')}") from error
    return cupy


def standalone(text: str) -> str:
    """Return `text` together with the GPU headers that it includes, so that it can be the compiler's only input."""
    while match := _INCLUDE.search(text):
        text = text[: match.start()] + (HEADERS / match[1]).read_text() + text[match.end() :]
    return text


class DeviceIdentity(NamedTuple):
    """The facts on which a kernel's results depend apart from its text: the device, and versions of software."""

    device: str
    capability: str
    driver: str
    cupy: str
    nvrtc: str

    @classmethod
    def of(cls, device: int) -> DeviceIdentity:
        """Return the identity of CUDA device number `device`."""
        cupy = import_cupy()
        name = cupy.cuda.runtime.getDeviceProperties(device)["name"]
        return cls(
            name.decode() if isinstance(name, bytes) else str(name),
            str(cupy.cuda.Device(device).compute_capability),
            str(cupy.cuda.runtime.driverGetVersion()),
            str(cupy.__version__),
            ".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        )

    def file(self, text: str, suffix: str) -> Path:
        """Return the path of the file for `text` in the directory of generated modules.

        Only this user and root can write to this directory.
        """
        digest = xxhash.xxh3_128_hexdigest("\0".join((text, *OPTIONS, *self)).encode())
        return directory() / f"psnode_rows_{digest}{suffix}"


class Loaded:
    """The kernels of a text on CUDA device number `device`. They are compiled unless a compiled file can be loaded.

    Each method launches kernels on `stream`, the address of a CUDA stream, and returns immediately. All other addresses are
    addresses of device memory.
    """

    names: ClassVar[tuple[str, ...]]  # kernels that every text has

    def __init__(self, text: str, device: int) -> None:
        self._cupy, self._device = import_cupy(), device
        self.text = standalone(text)
        path = DeviceIdentity.of(device).file(self.text, ".cubin")
        with self._cupy.cuda.Device(device):
            try:
                self._load(path)
            except Exception:  # no such file, or a file that this driver rejects
                write_whole(path, self._compiled(self.text))
                self._load(path)

    def _load(self, path: Path) -> None:
        if not path.is_file():
            raise FileNotFoundError(path)
        self._module = self._cupy.RawModule(path=str(path))
        self._functions = {name: self._module.get_function(name) for name in self.names}

    def _compiled(self, source: str) -> bytes:
        image, _ = self._cupy.cuda.compiler.compile_using_nvrtc(source, options=OPTIONS, filename="rows.cu")
        return image.encode() if isinstance(image, str) else bytes(image)

    def _launch(self, name: str, stream: int, count: int, *arguments: Any) -> None:
        """Launch a kernel for `count` units of work, one for each warp.

        If there are too many units, a warp processes several of them.
        """
        if name not in self._functions:
            self._functions[name] = self._module.get_function(name)
        blocks = min(-(-count // _ROWS_PER_BLOCK), _MOST_BLOCKS)
        with self._cupy.cuda.Device(self._device), self._cupy.cuda.Stream.from_external(_Stream(stream)):
            self._functions[name]((blocks,), (_THREADS,), arguments)

    def _fold(self, stream: int, source: int, target: int, to: int, count: int, sums: int) -> None:
        """Write the totals of `sums` sequences of `count` float64 each, stored at `source`, to `to`.

        `target`: memory for the sums of 512 numbers each.
        """
        while True:
            groups = rows_of(count)
            numbers = map(np.uint32, (count, groups, sums))
            there = np.uint64(to if groups == 1 else target)
            self._launch("fold_sums", stream, groups * sums, np.uint64(source), there, *numbers)
            if groups == 1:
                return
            source, target, count = target, source, groups


class Kernels(Loaded):
    """Kernels that encode and decode `count` full rows.

    `blocks` is True if the packing consists of blocks of variable length. If the widths of codes are fitted to each bucket,
    `bucket` is the number of rows in a bucket, else 0.
    """

    names = ("survey", "encode", "decode", "fold_sums")

    def __init__(self, text: str, device: int) -> None:
        super().__init__(text, device)
        self._has_norms, self.blocks = "KERNEL norms(" in text, "KERNEL place_blocks(" in self.text
        self.bucket = int(found[1]) if (found := _BUCKET.search(text)) else 0

    def survey(self, stream: int, x: int, tops: int, count: int) -> None:
        """Update the extremes at `tops`, as Functions.survey does."""
        self._launch("survey", stream, count, np.uint64(x), np.uint64(tops), np.uint32(count))

    def sum_up(self, stream: int, arrays: SumArrays, size: int, sums: int) -> None:
        """Write `sums` sums over all of `size` coordinates to `tops`, as Functions.sum_up does, and lower `done`.

        First every row's part of each sum is computed. Then the parts are added 512 at a time until one number is left, except
        the parts of an L2 norm, which are added one after another. If a row is not finite, `done` becomes the number of the
        first such row.
        """
        count, source, target = rows_of(size), arrays.room, arrays.room + 8 * sums * rows_of(size)
        addresses = [np.uint64(address) for address in arrays]
        self._launch("sum_rows", stream, count, *addresses, np.uint32(size), np.uint32(count))
        if self._has_norms:
            self._launch("norms", stream, 1, np.uint64(arrays.x), np.uint64(arrays.room), np.uint32(count))
        self._fold(stream, source, target, arrays.tops + 8 * FIRST_SUM, count, sums)

    def encode(self, stream: int, arrays: EncodeArrays, first: int, rows: int, count: int) -> None:
        """Encode `count` rows as Functions.encode does. The first of them is row number `first` of `rows`.

        `done` is lowered as in sum_up.
        """
        if not self.blocks:
            addresses = [np.uint64(address) for address in arrays[:-2]]
            numbers: list[Any] = [np.uint32(number) for number in (first, rows, count)]
            if self.bucket:
                x, _, side, _, *others = addresses
                self._launch("measure", stream, count // self.bucket, x, side, *others, *numbers)
                self.place(stream, arrays.side, arrays.starts, first, rows, count)
                numbers.append(np.uint64(arrays.starts))
            self._launch("encode", stream, count, *addresses, *numbers)
            return
        starts, rooms, blocks = np.uint64(arrays.starts), np.uint64(arrays.rooms), count // BLOCK_ROWS
        addresses = [np.uint64(address) for address in arrays._replace(packed=arrays.rooms)[:-2]]
        self._launch("encode", stream, blocks, *addresses, *map(np.uint32, (first, rows, count)), starts)
        self._launch("place_blocks", stream, 1, starts, np.uint32(blocks))
        self._launch("copy_blocks", stream, blocks, rooms, starts, np.uint64(arrays.packed), np.uint32(blocks))

    def place(self, stream: int, side: int, starts: int, first: int, rows: int, count: int) -> None:
        """Write the offset of each bucket's codes, and the end of the last bucket's codes, to `starts`.

        The widths of codes are at `side`.
        """
        self._launch("place_buckets", stream, 1, np.uint64(side), np.uint64(starts), *map(np.uint32, (first, rows, count)))

    def decode(self, stream: int, arrays: DecodeArrays, weight: float, adding: bool, first: int, rows: int, count: int) -> None:
        """Overwrite `out` with the decoded values of `count` rows, or add `weight` times these values if `adding` is True."""
        addresses = [np.uint64(address) for address in arrays[:-1]]
        numbers = np.float32(weight), np.int32(adding), *map(np.uint32, (first, rows, count))
        starts = [np.uint64(arrays.starts)] if self.blocks or self.bucket else []
        self._launch("decode", stream, count // BLOCK_ROWS if self.blocks else count, *addresses, *numbers, *starts)


class _Stream(NamedTuple):
    """A CUDA stream, given by its address, as an object that follows CUDA's stream protocol."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the version of the protocol, and the stream's address."""
        return 0, self.address


class SumArrays(NamedTuple):
    """Addresses of the arrays of `sum_up`. `room` points to `nbytes_of_sums` bytes."""

    x: int
    room: int
    tops: int
    done: int
    key: int


def nbytes_of_sums(size: int, sums: int) -> int:
    """Return the number of bytes that `sum_up` needs for the partial results of `sums` sums over `size` coordinates."""
    return 8 * sums * (rows_of(size) + rows_of(rows_of(size)))


class EncodeArrays(NamedTuple):
    """Addresses of the arrays of the kernel `encode`, in the order of its arguments.

    `error` is 0 if no error is wanted, and may equal `x`. If a row is not finite, `done` (uint32) becomes the number of the
    first such row. Packings of variable length also need `starts` and `rooms`. `starts` (uint32) holds the offset of each block
    or bucket in `packed` and the end of the last one. `rooms` has ROOM bytes per block.
    """

    x: int
    error: int
    side: int
    packed: int
    tops: int
    done: int
    key: int
    starts: int = 0
    rooms: int = 0


class DecodeArrays(NamedTuple):
    """Addresses of the arrays of the kernel `decode`, in the order of its arguments."""

    side: int
    packed: int
    out: int
    starts: int = 0
