"""Packings: how one number a coordinate becomes the last part of a body, and back, in NumPy.

`planes`, `fitted`, `halves`, `trits` and `sparse` take codes, `signs` conditions. Layouts are those of docs/payload-format.md.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Bytes, Int32s, Words32, readonly
from psnode.codecs.kernels import tbq
from psnode.codecs.kernels.planes import most_nbytes, packed_nbytes
from psnode.codecs.kernels.rows import cut_row, fill_row
from psnode.codecs.kernels.ternary import is_valid
from psnode.codecs.kernels.trits import DIGITS, cut_digits, fill_digits
from psnode.codecs.rows.language import minimum
from psnode.codecs.rows.values import Dtype, Span, Value
from psnode.errors import CodecSpecError, PayloadError

_WIDTHS = (8, 4, 2, 1)
_POWERS = 3 ** np.arange(DIGITS, dtype=np.uint32)[:, None]
_TOP = 242  # the largest byte of five trits
MOST_ROWS = 128  # of a bucket
NO_WIDTHS = np.zeros(0, np.uint8)


class Packed(NamedTuple):
    """Codes below 2^bits of a row's coordinates, to be packed the way that `form` says.

    `width`: a number of the array, the bits that they are packed by, of which `bits` are the most; None: by `bits`. Where codes
    are fitted to buckets, `bucket` is the rows of one, and `widths` are the bits of a code in each of them, once they are known.
    """

    value: Value
    form: str
    bits: int
    width: Value | None = None
    bucket: int = 1
    widths: Bytes = NO_WIDTHS

    @property
    def rows(self) -> int:
        """Rows that are packed together: a unit."""
        return {"trits": DIGITS, "sparse": tbq.BLOCK // 512, "fitted": self.bucket}.get(self.form, 1)

    @property
    def unit(self) -> int:
        """Bytes of a unit; of one that varies, the most."""
        return self.nbytes(512 * self.rows)

    @property
    def varies(self) -> bool:
        """True if the number of bytes depends on the codes."""
        return self.in_blocks or self.width is not None

    @property
    def is_told(self) -> bool:
        """True if numbers in front of the codes say how these are packed."""
        return self.form == "fitted" or self.width is not None

    @property
    def in_blocks(self) -> bool:
        """True if every unit has a length of its own."""
        return self.form in ("sparse", "fitted")

    def length(self, data: Bytes, size: int) -> int:
        """Bytes of the `size` codes that `data` begins with; if they have a width of their own, see Program.packing."""
        if self.form == "fitted":
            full, rest = divmod(size, 512 * self.bucket)
            last = packed_nbytes(rest, int(self.widths[full])) if rest else 0
            return 64 * self.bucket * int(self.widths[:full].sum(dtype=np.int64)) + last
        return tbq.length(readonly(data), size) if self.in_blocks else self.nbytes(size)

    def starts(self, data: Bytes, units: int) -> Int32s:
        """The places where `count` units begin in `data`, and the end of the last, if they have lengths of their own."""
        if self.form == "fitted":
            lengths = 64 * self.bucket * self.widths[:units].astype(np.uint32)
            return np.concatenate([np.zeros(1, np.uint32), lengths.cumsum(dtype=np.uint32)]).view(np.int32)
        return tbq.block_starts(readonly(data), units)

    def of_unit(self, unit: int) -> Packed:
        """The packing of unit number `unit`."""
        return self._replace(bits=int(self.widths[unit])) if self.form == "fitted" else self

    def nbytes(self, size: int) -> int:
        """Bytes that `size` codes take, or take at most."""
        if self.form == "sparse":
            return 2 * -(-size // tbq.BLOCK) + -(-size // DIGITS)
        if self.form == "trits":
            return -(-size // DIGITS)
        if self.form == "fitted" or self.width is not None:
            return most_nbytes(size, self.bits)
        return packed_nbytes(size, self.bits) if self.form == "planes" else -(-size * self.bits // 8)

    def pack(self, codes: Words32) -> Bytes:
        """The bytes of the codes of a unit or less."""
        if self.form == "sparse":
            return _block(codes)
        if self.form == "trits":
            digits = np.zeros((DIGITS, -(-codes.size // DIGITS)), np.uint32)
            digits.reshape(-1)[: codes.size] = codes
            return np.asarray((digits * _POWERS).sum(axis=0), np.uint8)
        if self.form == "halves":
            return codes.astype("<u2").view(np.uint8)
        if self.form == "signs":
            return np.packbits(codes.astype(bool), bitorder="little")
        if self.form == "fitted" and codes.size > 512:
            return np.concatenate([self.pack(codes[start : start + 512]) for start in range(0, codes.size, 512)])
        return np.concatenate([np.empty(0, np.uint8), *(_plane(codes, width, shift) for width, shift in _split(self.bits))])

    def unpack(self, data: Bytes, count: int) -> Words32:
        """Inverse of `pack`, for `count` codes that `data` begins with."""
        if self.form == "sparse":
            return _from_block(data, count)
        if self.form == "trits":
            return (np.minimum(data, _TOP).astype(np.uint32) // _POWERS % 3).astype(np.uint32).reshape(-1)[:count]
        if self.form == "halves":
            return data.copy().view("<u2").astype(np.uint32)
        if self.form == "signs":
            return np.unpackbits(data, count=count, bitorder="little").astype(np.uint32)
        if self.form == "fitted" and count > 512:
            rows = [self.unpack(data[start // 8 * self.bits :], min(512, count - start)) for start in range(0, count, 512)]
            return np.concatenate(rows)
        codes, at = np.zeros(count, np.uint32), 0
        for width, shift in _split(self.bits):
            stride = -(-count * width // 8)
            codes |= _from_plane(data[at : at + stride], width, count) << np.uint32(shift)
            at += stride
        return codes

    def cut(self, unit: Bytes, count: int, out: Bytes) -> None:
        """Write the first `count` codes of a packed unit, fewer than all, to `out`."""
        if self.form == "planes":
            cut_row(unit, self.bits, count, out)
            return
        if self.form == "fitted":
            row, start, rest = self._last_row(count)
            out[:start] = unit[:start]
            if rest:
                row.cut(unit[start:], rest, out[start:])
            return
        if self.form == "trits":
            cut_digits(unit, count, out)
            return
        if self.form == "sparse":
            found = self.pack(self.unpack(unit, 512 * self.rows)[:count])
            out[: found.size] = found
            return
        out[:] = unit[: out.size]
        if self.form == "signs" and count % 8:
            out[-1] &= np.uint8(2 ** (count % 8) - 1)

    def fill(self, data: Bytes, count: int, unit: Bytes) -> None:
        """Inverse of `cut`: the codes from `count` on are 0, or those that a sparse form leaves out."""
        if self.form == "planes":
            fill_row(readonly(data), self.bits, count, unit)
        elif self.form == "fitted":
            row, start, rest = self._last_row(count)
            unit[:start] = data[:start]
            if rest:
                row.fill(data[start:], rest, unit[start:])
        elif self.form == "trits":
            fill_digits(readonly(data), count, unit)
        elif self.form == "sparse":
            codes = np.ones(512 * self.rows, np.uint32)
            codes[:count] = self.unpack(data, count)
            found = self.pack(codes)
            unit[: found.size] = found
        else:
            unit[: data.size] = data

    def _last_row(self, count: int) -> tuple[Packed, int, int]:
        """The packing of rows of the last unit, where the row begins that is not full, and how many codes it has."""
        row = Packed(self.value, "planes", int(self.widths[-1]))
        return row, 64 * row.bits * (count // 512), count % 512

    def _is_padded(self, data: Bytes, count: int) -> bool:
        """True if no bit is 1 after the last of `count` codes of the incomplete row that `data` ends with."""
        last, row = data[data.size - self.nbytes(count) :], np.zeros(self.unit, np.uint8)
        again = np.empty(last.size, np.uint8)
        self.fill(last, count, row)
        self.cut(row, count, again)
        return bool((again == last).all())

    def check(self, data: Bytes, size: int, owner: str) -> None:
        """PayloadError, naming `owner`, unless `data` is as long as it is to be and no bits follow the last code or digit."""
        if self.form == "sparse":
            if not tbq.is_valid(readonly(data), size):
                raise PayloadError(f"{owner}: {data.size} bytes that are not blocks of {size} coordinates")
            return
        if self.form == "fitted":
            if int(self.widths.max(initial=0)) > self.bits:
                raise PayloadError(f"{owner}: codes of more than {self.bits} bits")
            if data.size != self.length(data, size):
                raise PayloadError(f"{owner}: {data.size} bytes cannot hold {size} codes with the widths that are sent")
            row, _, rest = self._last_row(size)
            if rest and not row._is_padded(data, rest):
                raise PayloadError(f"{owner}: bits follow those of the last code")
            return
        if data.size != self.nbytes(size):
            raise PayloadError(f"{owner}: {data.size} bytes instead of {self.nbytes(size)} for {size} coordinates")
        if self.form == "signs" and size % 8 and int(data[-1]) >> size % 8:
            raise PayloadError(f"{owner}: bits follow that of the last coordinate")
        if self.form == "planes" and size % 512 and not self._is_padded(data, size % 512):
            raise PayloadError(f"{owner}: bits follow those of the last code")
        if self.form == "trits" and not is_valid(readonly(data), size):
            raise PayloadError(f"{owner}: {data.size} bytes that are not {size} digits, five to a byte")


def planes(codes: Value, width: int | Value, most: int = 16) -> Packed:
    """Codes below 2^width, 1 to 16 bits each; uint32.

    The width may be a number of the array, uint32, that is made of numbers which are sent: from 0 to `most`, which a larger one
    counts as.
    """
    bits = most if isinstance(width, Value) else width
    if not isinstance(bits, int) or not 1 <= bits <= 16:
        raise CodecSpecError(f"planes have 1 to 16 bits, not {bits}")
    codes = _checked(codes, Dtype.U32, "planes")
    if not isinstance(width, Value):
        return Packed(codes, "planes", bits)
    if width.kind is not Dtype.U32 or width.span > Span.ARRAY:
        raise CodecSpecError(f"the width of planes is a uint32 of the array, not {width!r}")
    return Packed(codes, "planes", bits, minimum(width, bits))


def fitted(codes: Value, rows: int, most: int = 16) -> Packed:
    """Codes below 2^most, in every bucket of `rows` rows as planes of the bits that its largest code has; uint32.

    These widths, a byte each, are sent after the numbers, with zeros to a multiple of 4 bytes.
    """
    if not isinstance(most, int) or not 1 <= most <= 16:
        raise CodecSpecError(f"planes have 1 to 16 bits, not {most}")
    if not isinstance(rows, int) or not 1 <= rows <= MOST_ROWS:
        raise CodecSpecError(f"a bucket has 1 to {MOST_ROWS} rows, not {rows}")
    return Packed(_checked(codes, Dtype.U32, "fitted"), "fitted", most, bucket=rows)


def halves(codes: Value) -> Packed:
    """Codes below 2^16, two bytes each, the lower one first; uint32."""
    return Packed(_checked(codes, Dtype.U32, "halves"), "halves", 16)


def signs(conditions: Value) -> Packed:
    """One bit each, 1 where the condition is true."""
    return Packed(_checked(conditions, Dtype.BOOL, "signs"), "signs", 1)


def trits(codes: Value) -> Packed:
    """Codes 0, 1, 2, five to a byte; uint32."""
    return Packed(_checked(codes, Dtype.U32, "trits"), "trits", 2)


def sparse(codes: Value) -> Packed:
    """Codes 0, 1, 2, of which 1 is frequent: by blocks five to a byte, or two bytes for each other one, the shorter; uint32."""
    return Packed(_checked(codes, Dtype.U32, "sparse"), "sparse", 2)


def _block(codes: Words32) -> Bytes:
    """A block of psnode.codecs.kernels.tbq."""
    places = np.flatnonzero(codes != 1)
    if 2 * places.size < -(-codes.size // DIGITS):
        entries = places | np.where(codes[places] == 0, 0x8000, 0)
        return np.concatenate([[places.size], entries]).astype("<u2").view(np.uint8)
    digits = np.zeros((DIGITS, -(-codes.size // DIGITS)), np.uint32)
    digits.reshape(-1)[: codes.size] = codes
    return np.concatenate([[0xFF, 0xFF], (digits * _POWERS).sum(axis=0)]).astype(np.uint8)


def _from_block(data: Bytes, count: int) -> Words32:
    sent = int(data[0]) + 256 * int(data[1])
    if sent == 0xFFFF:
        trits = np.minimum(data[2 : 2 + -(-count // DIGITS)], _TOP).astype(np.uint32)
        return np.asarray(trits // _POWERS % 3, np.uint32).reshape(-1)[:count]
    codes, entries = np.ones(count, np.uint32), data[2 : 2 + 2 * sent].copy().view("<u2")
    codes[entries & 0x7FFF] = np.where(entries & 0x8000, 0, 2)
    return codes


def _checked(value: Value, kind: Dtype, word: str) -> Value:
    if not isinstance(value, Value) or value.kind is not kind or value.span is not Span.COORDINATE:
        raise CodecSpecError(f"{word} takes a {kind.value} of every coordinate, not {value!r}")
    return value


def _split(width: int) -> list[tuple[int, int]]:
    """Widths of planes, and the lowest bit of the codes that each holds."""
    parts, shift = [], 0
    for part in [8] * (width // 8) + [part for part in _WIDTHS[1:] if width % 8 & part]:
        parts.append((part, shift))
        shift += part
    return parts


def _plane(codes: Words32, width: int, shift: int) -> Bytes:
    stride = -(-codes.size * width // 8)
    fields = np.zeros(stride * 8 // width, np.uint32)
    fields[: codes.size] = codes >> np.uint32(shift) & np.uint32(2**width - 1)
    places = np.arange(8 // width, dtype=np.uint32)[:, None] * np.uint32(width)
    return np.asarray(np.bitwise_or.reduce(fields.reshape(-1, stride) << places, axis=0), np.uint8)


def _from_plane(data: Bytes, width: int, count: int) -> Words32:
    places = np.arange(8 // width, dtype=np.uint32)[:, None] * np.uint32(width)
    return ((data.astype(np.uint32) >> places) & np.uint32(2**width - 1)).reshape(-1)[:count]
