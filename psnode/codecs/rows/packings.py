"""Packings. NumPy code packs one code per coordinate into the last part of a body, and unpacks these codes.

`planes`, `fitted`, `halves`, `trits` and `sparse` take codes, and `signs` takes conditions. docs/payload-format.md describes
the layouts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Bytes, Int32s, Words32, readonly
from psnode.codecs.kernels import tbq
from psnode.codecs.kernels.planes import BLOCK, most_nbytes, packed_nbytes, repack
from psnode.codecs.kernels.ternary import is_valid
from psnode.codecs.kernels.trits import DIGITS, cut_digits, fill_digits
from psnode.codecs.rows.language import minimum
from psnode.codecs.rows.values import Dtype, Span, Value
from psnode.errors import CodecSpecError, PayloadError

_WIDTHS = (8, 4, 2, 1)
_POWERS = 3 ** np.arange(DIGITS, dtype=np.uint32)[:, None]
_TOP = 242  # the greatest byte of five trits
MOST_ROWS = 128  # in a bucket
NO_WIDTHS = np.zeros(0, np.uint8)


class Packed(NamedTuple):
    """The codes of coordinates, each below 2^bits, and the way in which they are packed, which `form` names.

    `width` is a number of the array that gives the bits per code, at most `bits`. If `width` is None, codes have `bits` bits.
    If codes are fitted to buckets, `bucket` is the number of rows in a bucket, and `widths` holds the bits per code of every
    bucket once they are known.
    """

    value: Value
    form: str
    bits: int
    width: Value | None = None
    bucket: int = 1
    widths: Bytes = NO_WIDTHS

    @property
    def rows(self) -> int:
        """The number of rows that are packed together. These rows form a unit."""
        return {"trits": DIGITS, "sparse": tbq.BLOCK // 512, "fitted": self.bucket}.get(self.form, 1)

    @property
    def unit(self) -> int:
        """The number of bytes of a unit, or the largest number if its length varies."""
        return self.nbytes(512 * self.rows)

    @property
    def varies(self) -> bool:
        """True if the number of bytes depends on the codes."""
        return self.in_blocks or self.width is not None

    @property
    def is_told(self) -> bool:
        """True if numbers before the codes determine how the codes are packed."""
        return self.form == "fitted" or self.width is not None

    @property
    def in_blocks(self) -> bool:
        """True if units differ in length."""
        return self.form in ("sparse", "fitted")

    def length(self, data: Bytes, size: int) -> int:
        """Return the number of bytes of the `size` codes at the start of `data`.

        If there is a `width`, call Program.packing first.
        """
        if self.form == "fitted":
            full, rest = divmod(size, 512 * self.bucket)
            last = packed_nbytes(rest, int(self.widths[full])) if rest else 0
            return 64 * self.bucket * int(self.widths[:full].sum(dtype=np.int64)) + last
        return tbq.length(readonly(data), size) if self.in_blocks else self.nbytes(size)

    def starts(self, data: Bytes, units: int) -> Int32s:
        """Return the offsets of the first `units` units in `data` and the end of the last one. Requires `in_blocks`."""
        if self.form == "fitted":
            lengths = 64 * self.bucket * self.widths[:units].astype(np.uint32)
            return np.concatenate([np.zeros(1, np.uint32), lengths.cumsum(dtype=np.uint32)]).view(np.int32)
        return tbq.block_starts(readonly(data), units)

    def of_unit(self, unit: int) -> Packed:
        """Return the packing of unit number `unit`, with the width of this unit."""
        return self._replace(bits=int(self.widths[unit])) if self.form == "fitted" else self

    def nbytes(self, size: int) -> int:
        """Return the number of bytes that `size` codes take, or the largest number if the length varies."""
        if self.form == "sparse":
            return 2 * -(-size // tbq.BLOCK) + -(-size // DIGITS)
        if self.form == "trits":
            return -(-size // DIGITS)
        if self.form == "fitted" or self.width is not None:
            return most_nbytes(size, self.bits)
        return packed_nbytes(size, self.bits) if self.form == "planes" else -(-size * self.bits // 8)

    def pack(self, codes: Words32) -> Bytes:
        """Return the packed bytes of `codes`, which are at most one unit."""
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
        """Return the first `count` codes in `data`. This is the inverse of `pack`."""
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
        """Write the first `count` codes of the packed full unit `unit` to `out`, in packed form. `count` is less than a unit."""
        if self.form == "planes":
            repack(readonly(unit), BLOCK, self.bits, out, count)
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
        """Write the codes in `data` to `unit` as a full packed unit. This is the inverse of `cut`.

        Codes from `count` on are 0, or 1 in the sparse form.
        """
        if self.form == "planes":
            repack(readonly(data), count, self.bits, unit, BLOCK)
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
        """Return the packing of the last unit's rows, the offset of its incomplete row, and the number of codes in that row."""
        row = Packed(self.value, "planes", int(self.widths[-1]))
        return row, 64 * row.bits * (count // 512), count % 512

    def _is_padded(self, data: Bytes, count: int) -> bool:
        """Return True if all bits after the last code are 0. `data` ends with an incomplete row of `count` codes."""
        last, row = data[data.size - self.nbytes(count) :], np.zeros(self.unit, np.uint8)
        again = np.empty(last.size, np.uint8)
        self.fill(last, count, row)
        self.cut(row, count, again)
        return bool((again == last).all())

    def check(self, data: Bytes, size: int, owner: str) -> None:
        """Raise PayloadError, naming `owner`, unless `data` has the right length and only zeros follow the last code or digit."""
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
    """Return the packing of uint32 codes below 2^width with `width` bits each, 1 to 16.

    The width may also be a number of the array (uint32) that is computed from numbers that are sent. It is then limited to
    `most`, and may be 0.
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
    """Return the packing of uint32 codes below 2^most in which each bucket of `rows` rows has its own width.

    The codes of a bucket have as many bits as its largest code, and are packed in planes. The widths, a byte per bucket, are
    sent after the numbers, padded with zeros to a multiple of 4 bytes.
    """
    if not isinstance(most, int) or not 1 <= most <= 16:
        raise CodecSpecError(f"planes have 1 to 16 bits, not {most}")
    if not isinstance(rows, int) or not 1 <= rows <= MOST_ROWS:
        raise CodecSpecError(f"a bucket has 1 to {MOST_ROWS} rows, not {rows}")
    return Packed(_checked(codes, Dtype.U32, "fitted"), "fitted", most, bucket=rows)


def halves(codes: Value) -> Packed:
    """Return the packing of uint32 codes below 2^16 into two bytes each, the lower byte first."""
    return Packed(_checked(codes, Dtype.U32, "halves"), "halves", 16)


def signs(conditions: Value) -> Packed:
    """Return the packing of conditions into one bit each, which is 1 where the condition is true."""
    return Packed(_checked(conditions, Dtype.BOOL, "signs"), "signs", 1)


def trits(codes: Value) -> Packed:
    """Return the packing of uint32 codes 0, 1 and 2, five to a byte."""
    return Packed(_checked(codes, Dtype.U32, "trits"), "trits", 2)


def sparse(codes: Value) -> Packed:
    """Return the packing of uint32 codes 0, 1 and 2, where 1 is frequent.

    Each block uses the shorter of two forms: five codes to a byte, or two bytes for each code other than 1.
    """
    return Packed(_checked(codes, Dtype.U32, "sparse"), "sparse", 2)


def _block(codes: Words32) -> Bytes:
    """Return the bytes of `codes` as a block in the format of psnode.codecs.kernels.tbq."""
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
    """Return the widths of planes, and the lowest bit of the codes that each plane holds."""
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
