"""Code of a set of indices, or of its complement if this is smaller: the shorter of gaps and an entropy-coded bitmap.

    offset  bytes  field           little-endian
         0      4  m               number of coded indices; at most half of all
         4      1  form            bits 0..5: 0..28, the b of a code of gaps; 62, a code of gaps with a b for every 32 gaps;
                                   63, a bitmap. Bit 7: the m coded indices are the complement of the set
         5         code            psnode.codecs.selection.gaps or .bitmap; empty if m = 0

For random sets of any density the code is within 3 % of log2 binomial(size, count), apart from these 5 bytes and the 16 bytes of
a bitmap's states.
"""

from __future__ import annotations

import struct

import numpy as np

from psnode.codecs.arrays import Bytes, Words32
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.selection import bitmap, gaps
from psnode.errors import PayloadError

_HEAD = 5
FITTED = 62
_BITMAP = 63
_COMPLEMENT = 128
DENSE = 8  # a bitmap is tried only if more than one index in eight is coded


def max_nbytes(count: int, size: int) -> int:
    """Return the largest length in bytes of the code of at most `count` indices below `size`."""
    return _HEAD + gaps.max_nbytes(min(count, size // 2), size)


def write(indices: Words32, size: int, out: Bytes) -> int:
    """Write the code of ascending, distinct indices below `size` (at most 2^28) to `out`. Return its length in bytes."""
    complement = 2 * indices.size > size
    coded = _others(indices, size) if complement else indices
    form = nbytes = 0
    if coded.size:
        chosen = gaps.choose(coded, size)
        nbytes, form = chosen.nbytes, FITTED if chosen.b is None else chosen.b
        code = bitmap.write(coded, size) if DENSE * coded.size > size else None
        if code is not None and code.size < nbytes:
            form, nbytes = _BITMAP, code.size
            out[_HEAD : _HEAD + nbytes] = code
        else:
            gaps.write(coded, chosen, out[_HEAD : _HEAD + nbytes])
    out[:_HEAD] = np.frombuffer(head(coded.size, form | _COMPLEMENT * complement), np.uint8)
    return _HEAD + nbytes


def head(coded: int, form: int) -> bytes:
    """Return the first 5 bytes of a code with `coded` coded indices: m and the form."""
    return struct.pack("<IB", coded, form)


def count(data: Bytes, size: int) -> int:
    """Return the number of indices that the head of `data` states.

    Raises PayloadError if the number is not possible below `size`.
    """
    if data.size < _HEAD:
        raise PayloadError(f"{data.size} bytes are too few for a set of indices")
    coded = int.from_bytes(data[:4].tobytes(), "little")
    if coded > size // 2:
        raise PayloadError(f"{coded} indices are coded, of {size} at most half can be")
    return size - coded if int(data[4]) & _COMPLEMENT else coded


def read(data: Bytes, size: int) -> Words32:
    """Return the ascending indices (uint32) below `size` that `data` encodes. `data` must hold nothing else.

    Raises PayloadError.
    """
    selected = count(data, size)
    complement, form = bool(data[4] & _COMPLEMENT), int(data[4]) & ~_COMPLEMENT
    coded = size - selected if complement else selected
    if not coded:
        if data.size > _HEAD or form:
            raise PayloadError(f"{data.size} bytes and form {form} for a set without a coded index")
        indices = np.empty(0, np.uint32)
    elif form == _BITMAP:
        indices = bitmap.read(data[_HEAD:], coded, size)
    else:
        indices = gaps.read(data[_HEAD:], None if form == FITTED else form, coded, size)
    return _others(indices, size) if complement else indices


def _others(indices: Words32, size: int) -> Words32:
    others = np.empty(size - indices.size, np.uint32)
    _fill_others(indices, size, others)
    return others


@kernel
def _fill_others(indices: Words32, size: int, others: Words32) -> None:
    """Fill `others` with the indices below `size` that are not in `indices`."""
    at = 0
    start = np.int64(0)
    for i in range(indices.size + 1):
        stop = np.int64(indices[i]) if i < indices.size else np.int64(size)
        for index in range(start, stop):
            others[at] = index
            at += 1
        start = stop + 1
