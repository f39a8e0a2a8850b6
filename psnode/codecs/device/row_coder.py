"""Coding of arrays on a device with the kernels of a program."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from psnode.codecs.arrays import Bytes, Shape, Words
from psnode.codecs.device.staging_buffer import StagingBuffer
from psnode.codecs.kernels.finite import INFINITY_BITS

if TYPE_CHECKING:
    from psnode.codecs import Codec
    from psnode.codecs.device.cupy.row_kernels import DecodeArrays, EncodeArrays, Kernels
    from psnode.codecs.rows.formula import Program
    from psnode.codecs.rows.packings import Packed

    CodecKernels: TypeAlias = tuple[Program, Kernels]


def kernels_for(codec: Codec, device: torch.device) -> CodecKernels | None:
    """Return the program of `codec` and its kernels on `device`, or None if the codec has no formula.

    The kernels are compiled unless they are cached.
    """
    from psnode.codecs.device.cupy.row_kernels import Kernels
    from psnode.codecs.rows.cuda.text import text_of
    from psnode.codecs.rows.formula import program_of
    from psnode.codecs.rows.known import formula_of

    formula = formula_of(codec)
    if formula is None:
        return None
    program = program_of(formula)
    return program, Kernels(text_of(program), device.index or 0)


def stream_of(device: torch.device) -> int:
    """Return the address of torch's current stream. Kernels launched on it run in order with torch's own kernels."""
    return int(torch.cuda.current_stream(device).cuda_stream)


class DeviceCoder:
    """Encoder and decoder of arrays of `size` values on a device, by a program. Most calls do not wait for the device.

    Arrays are flat float32 of length `padded`, a multiple of the unit in which rows are packed. They have zeros after the
    `size` values. `body` (uint8) holds the output of encode: the numbers, then the codes of all units, including the padding of
    the last unit.
    """

    def __init__(self, program: Program, kernels: Kernels, size: int, device: torch.device) -> None:
        from psnode.codecs.device.cupy.row_kernels import ROOM, nbytes_of_sums
        from psnode.codecs.rows.formula import rows_of
        from psnode.codecs.rows.language import ROW

        packed = program.packed
        units = -(-size // (ROW * packed.rows))
        self.program, self.padded, self._size = program, units * ROW * packed.rows, size
        self._rows, self._count = rows_of(size), units * packed.rows
        self._kernels, self._device = kernels, device
        self._start = 4 * program.side_words(size)
        self._found: Packed | None = None if packed.is_told else packed
        self.body = torch.zeros(self._start + units * packed.unit, dtype=torch.uint8, device=device)
        self._passage = StagingBuffer(self.body.numel(), device)
        self._starts = torch.zeros(units + 1 if packed.in_blocks else 0, dtype=torch.int32, device=device)
        self._rooms = torch.zeros(units * ROOM if packed.form == "sparse" else 0, dtype=torch.uint8, device=device)
        self._unknown = torch.tensor(program.of_input(size))
        self._tops = self._unknown.to(device, copy=True)
        self._room = torch.empty(nbytes_of_sums(size, len(program.sums)), dtype=torch.uint8, device=device)
        self._key = torch.zeros(2, dtype=torch.int64, device=device)
        self._done = torch.zeros(1, dtype=torch.int32, device=device)  # the number of rows before the first that is not finite

    def encode(self, x: torch.Tensor, key: Words, error: torch.Tensor | None = None) -> None:
        """Write `body`, and x - decoded to `error`, which may be `x`. Both are valid only if `is_finite` is True afterwards."""
        from psnode.codecs.device.cupy.row_kernels import EncodeArrays, SumArrays

        stream = stream_of(self._device)
        self._found = None if self.program.packed.is_told else self.program.packed
        self._key.copy_(torch.tensor(np.asarray(key, np.uint64).view(np.int64)), non_blocking=True)
        self._done.fill_(self._count)
        if self.program.sweeps and not self._survey(x, stream):
            self._done.zero_()
            return
        if self.program.sums:
            places = [each.data_ptr() for each in (x, self._room, self._tops, self._done, self._key)]
            self._kernels.sum_up(stream, SumArrays(*places), self._size, len(self.program.sums))
        arrays = EncodeArrays(
            x.data_ptr(), 0 if error is None else error.data_ptr(), self.body.data_ptr(), self.body.data_ptr() + self._start,
            self._tops.data_ptr(), self._done.data_ptr(), self._key.data_ptr(), self._starts.data_ptr(), self._rooms.data_ptr(),
        )  # fmt: skip
        self._code(stream, arrays)

    def _code(self, stream: int, arrays: EncodeArrays) -> None:
        self._kernels.encode(stream, arrays, 0, self._rows, self._count)

    @property
    def is_finite(self) -> bool:
        """True unless the last array had a value that is not finite. Waits for the device."""
        return int(self._done) == self._count

    def _survey(self, x: torch.Tensor, stream: int) -> bool:
        """Find the extremes of all values, and return True if the values are finite. Waits for the device."""
        self._tops.copy_(self._unknown)
        x[self._size :].copy_(x[0])  # a repeated value changes no extreme, but zeros might
        self._kernels.survey(stream, x.data_ptr(), self._tops.data_ptr(), self._count)
        x[self._size :].zero_()
        return int(self._tops[0]) < INFINITY_BITS

    def decode(self, out: torch.Tensor, weight: float = 1.0, *, adding: bool = False) -> None:
        """Overwrite `out` with the values decoded from `body`, or add `weight` times these values if `adding` is True."""
        self._kernels.decode(stream_of(self._device), self._arrays(out), weight, adding, 0, self._rows, self._count)

    def _arrays(self, out: torch.Tensor) -> DecodeArrays:
        from psnode.codecs.device.cupy.row_kernels import DecodeArrays

        body, starts = self.body.data_ptr(), self._starts.data_ptr()
        return DecodeArrays(body, body + self._start, out.data_ptr(), starts)

    def add_to(self, out: torch.Tensor, weight: float) -> None:
        """Add `weight` times the decoded `body` to `out`, which has `size` values, and may be followed by other memory."""
        from psnode.codecs.rows.language import ROW

        packed, stream = self._packing(), stream_of(self._device)
        unit = ROW * packed.rows
        full = self._size // unit * unit
        arrays = self._arrays(out)
        if full:
            self._kernels.decode(stream, arrays, weight, True, 0, self._rows, full // ROW)
        if full < self._size:
            room = torch.zeros(unit, dtype=torch.float32, device=self._device)
            room[: self._size - full].copy_(out[full:])
            last = arrays._replace(out=room.data_ptr())
            if packed.in_blocks:
                last = last._replace(starts=arrays.starts + 4 * (full // unit))
            else:
                last = last._replace(packed=arrays.packed + full // unit * packed.unit)
            self._kernels.decode(stream, last, weight, True, full // ROW, self._rows, packed.rows)
            out[full:].copy_(room[: self._size - full])

    def put(self, found: Bytes) -> None:
        """Copy the codec's bytes from the host to `body`, for later work on the stream. This is the inverse of `take`."""
        from psnode.codecs.rows.language import ROW

        self._found = packed = self.program.packing(found[: self._start].view(np.uint32), self._size)
        unit = ROW * packed.rows
        full, left = divmod(self._size, unit)
        end = self._start + packed.length(found[self._start :], full * unit)
        whole = self._passage.free(end + packed.unit * bool(left))
        whole[:end], whole[end:] = found[:end], 0
        if left:
            packed.fill(found[end:], left, whole[end:])
        if packed.in_blocks:
            starts = packed.starts(whole[self._start :], self._starts.numel() - 1)
            self._starts.copy_(torch.from_numpy(starts))
            whole = whole[: self._start + int(starts[-1])]
        self._passage.up(self.body[: whole.size])

    def take(self, out: Bytes) -> int:
        """Write the codec's bytes, `body` without its padding, to `out` on the host, and return their number.

        Waits for the work that was given to the stream.
        """
        from psnode.codecs.rows.language import ROW

        packed = self._packing()
        unit = ROW * packed.rows
        used = self._start + (int(self._starts[-1]) if packed.in_blocks else self._count // packed.rows * packed.unit)
        found = self._passage.down(self.body[:used])
        full, left = divmod(self._size, unit)
        end = self._start + packed.length(found[self._start :], full * unit)
        out[:end] = found[:end]
        if left:
            packed.cut(found[end:], left, out[end : self.program.nbytes(self._size)])
        return self.program.length(out, self._size)

    def _packing(self) -> Packed:
        """Return the packing of the codes in `body`.

        If numbers in `body` determine the width of the codes, wait for the device.
        """
        if self._found is None:
            self._found = self.program.packing(self.body[: self._start].cpu().numpy().view(np.uint32), self._size)
        return self._found


class RowEncoder(DeviceCoder):
    """Encoder of rows on a device. The body begins with the parameters if the codec is user-defined."""

    def __init__(self, codec: Codec, kernels: CodecKernels, shape: Shape, device: torch.device) -> None:
        from psnode.codecs.rows.codec import preamble

        super().__init__(*kernels, math.prod(shape), device)
        self._head = np.frombuffer(preamble(codec), np.uint8)

    def take(self, out: Bytes) -> int:
        start = self._head.size
        out[:start] = self._head
        return start + super().take(out[start:])
