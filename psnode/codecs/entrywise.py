"""Entry-wise ATOMO: coordinates are sampled with the probabilities of least variance for a given expected number of entries.

Let V be the level at which the probabilities p_i = min(1, |x_i| / V) add up to the budget s. Entry i is sent with probability
p_i and decodes to x_i / p_i, which is x_i if p_i = 1 and V or -V otherwise. An entry with p_i < 1 costs only an index and a
sign. E decode = x, and E||decode - x||^2 = sum_i (V - |x_i|) |x_i| over |x_i| < V. If there are at most s non-zero entries, a
message holds all of them. Otherwise it holds floor(s) or ceil(s) entries.

    float32    V
    section    the indices sent, out of d, as in selection.indices (a section: uint32 length, bytes, zeros to a multiple of 4)
    section    the positions of the entries with |x_i| > V among the entries sent, in the same code
    section    sign bits of the other entries, which decode to V or -V, lowest bit first, 1 for negative
    float32    the values of the entries with |x_i| > V

Source: Wang, Sievert, Charles, Liu, Wright, Papailiopoulos, "ATOMO: Communication-efficient Learning via Atomic
Sparsification", NeurIPS 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.abilities import Sparse
from psnode.codecs.arrays import Words32
from psnode.codecs.base import NOTHING, Bytes, Codec, Floats, Shape, Sink, Source, Words
from psnode.codecs.bounds import check_real
from psnode.codecs.kernels.dots import tree_products
from psnode.codecs.kernels.entries import add_at, put_at
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.payload import MAX_COORDINATES
from psnode.codecs.selection import indices
from psnode.codecs.selection.largest import Entries
from psnode.codecs.selection.waterfilling import draw, level_of
from psnode.codecs.sinks import InnerProducts
from psnode.codecs.stages import check_finite, padded, read_section, write_section
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

_SHARE = 1 / 16
LEAST = 1e-6
_DRAW = 1 << 8  # added to the stage's number; the sum is the stream of the draw


@dataclass(frozen=True, repr=False)
class Entrywise(Sparse, Codec):
    """entrywise:budget=.

    `budget` s: the expected number of entries sent if s is at least 1, otherwise their share of all coordinates. The default is
    a share of 1/16, which takes 0.4 bits per coordinate, 80 times less than float32. E||decode - x||^2 is then 9 ||x||^2 if x
    is Gaussian, and about ||x||^2 for a gradient with most of its energy in few entries. Averaging over workers reduces the
    error. The error falls at least as fast as 1 / s. One-level QSGD corresponds to the budget ||x||_1 / ||x||_2, and TernGrad
    to ||x||_1 / ||x||_inf.

    An entry whose probability is 1 is sent unchanged:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("entrywise:budget=4"), np.array([0, 3, 0, -5, 0, 0, 0, 0], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [0.0, 3.0, 0.0, -5.0, 0.0, 0.0, 0.0, 0.0]
    """

    budget: float | None = None

    id = "entrywise"
    traits = Traits(unbiased=True, sparse=True)

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        if self.budget is not None:
            check_real(self, "budget", LEAST, MAX_COORDINATES)

    def omega(self, x: Floats) -> float:
        """Return E||decode(encode(x)) - x||^2 / ||x||^2 for this x, or 0 for a zero array."""
        level = level_of(np.ascontiguousarray(x), self._budget(x.size), np.zeros(2, np.uint64), number_of(self.id))[1]
        magnitudes = np.abs(x, dtype=np.float64)
        below = magnitudes[magnitudes < level]
        return float(np.sum(below * (level - below)) / (np.sum(magnitudes**2) or 1.0))

    def _budget(self, size: int) -> float:
        budget = _SHARE if self.budget is None else self.budget
        return max(1.0, budget * size) if budget < 1 else budget

    def _most(self, size: int) -> int:
        return min(size, int(self._budget(size)) + 2)

    def _max_body(self, shape: Shape) -> int:
        size = math.prod(shape)
        most = self._most(size)
        sides = indices.max_nbytes(most, size), indices.max_nbytes(most, most), -(-most // 8)
        return 4 + sum(4 + padded(side) for side in sides) + 4 * most

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return sink is NOTHING or isinstance(sink, InnerProducts)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        x = source.array()
        stream = number_of(self.id)
        level, divisor = level_of(x, self._budget(x.size), key, stream)
        entries = draw(x, level, divisor, self._most(x.size), key, stream + _DRAW)
        certain = np.abs(entries.values) > level
        body[:4].view(np.float32)[0] = level
        used = 4
        used += self._write_set(entries.indices, x.size, body[used:])
        used += self._write_set(np.flatnonzero(certain).astype(np.uint32), certain.size, body[used:])
        signs = np.packbits(np.signbit(entries.values[~certain]), bitorder="little")
        body[used + 4 : used + 4 + signs.size] = signs
        used += write_section(body[used:], signs.size)
        end = used + 4 * int(np.count_nonzero(certain))
        body[used:end].view(np.float32)[:] = entries.values[certain]
        if isinstance(sink, InnerProducts):
            sent = self._entries(body[:end], x.shape)
            sink.record(*tree_products(x.reshape(-1)[sent.indices], sent.values))
        return end

    def _write_set(self, members: Words32, size: int, body: Bytes) -> int:
        return write_section(body, indices.write(members, size, body[4:]))

    def _entries(self, body: Bytes, shape: Shape) -> Entries:
        size = math.prod(shape)
        if body.size < 4:
            raise PayloadError(f"entrywise: a body of {body.size} bytes ends inside the level")
        level = np.float32(body[:4].view(np.float32)[0])
        if not 0 <= level < np.inf:
            raise PayloadError(f"entrywise: the level is {level}")
        sent, rest = read_section(body[4:])
        certain, rest = read_section(rest)
        signs, raw = read_section(rest)
        count = indices.count(sent, size)
        uncertain = count - indices.count(certain, count)
        unused = int(signs[-1]) >> (uncertain % 8 or 8) if signs.size else 0
        if signs.size != -(-uncertain // 8) or unused or raw.size != 4 * (count - uncertain):
            raise PayloadError(f"entrywise: {signs.size} bytes of signs, {raw.size} of values, {uncertain} of {count} are drawn")
        check_finite(raw.view(np.float32), self.id)
        members, values = indices.read(sent, size), np.empty(count, np.float32)
        _fill(level, signs, indices.read(certain, count), raw.view(np.float32), values)
        return Entries(members, values)

    def _decode(self, body: Bytes, out: Floats) -> None:
        put_at(out.reshape(-1), *self._entries(body, out.shape))

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        add_at(out.reshape(-1), *self._entries(body, out.shape), weight)


@kernel
def _fill(level: np.float32, signs: Bytes, certain: Words32, raw: Floats, values: Floats) -> None:
    """Fill `values`: the entries at the indices `certain` with `raw`, and all others with plus or minus the level.

    The next bit of `signs` determines the sign of each of these other entries.
    """
    at = 0
    j = 0
    for i in range(values.size):
        if j < certain.size and certain[j] == i:
            values[i] = raw[j]
            j += 1
        else:
            negative = (signs[at >> 3] >> np.uint8(at & 7)) & np.uint8(1)
            values[i] = -level if negative else level
            at += 1
