"""AdaComp: the entries that one more gradient would lift to the maximum of their bin, sent as their signs and one scale.

Let G be the sum of residual and gradient g, and H = G + g. In each bin of `length` neighbours, an entry is sent if its |H| is at
least the largest |G| of the bin. It decodes to sign(G) s, where the scale s is the mean over all bins of the largest |G|. The
share of entries sent adapts to the gradients: it is small if the entries of a bin differ much, and large if gradients continue in
the direction of the residual.

If the array is encoded from a source `Accumulated`, g consists of the parts that this source adds to the residual. Any other
array x counts as a gradient without a residual: G = g = x and H = 2 x. An entry is then sent if it reaches half of the maximum
of its bin. Zeros are never sent.

    float32   s; 0 if nothing is sent
    section   the indices sent: psnode.codecs.selection.indices (a section: uint32 length, bytes, zeros to a multiple of 4)
    bits      signs of the entries sent, lowest bit first, 1 for negative

The paper does not limit s. If a few bins were much larger than all others, s would be far above most entries sent, and the
error would have more energy than x. Therefore this codec limits s to 1.75 times the mean magnitude of the entries sent. At this
limit s removes 7/16 of the energy that a scale equal to the mean magnitude would remove. Thus ||x - decode|| < ||x|| whenever
an entry is sent.

Source: Chen, Choi, Brand, Agrawal, Zhang, Gopalakrishnan, "AdaComp: Adaptive residual gradient compression for data-parallel
distributed training", AAAI 2018, algorithms 1 and 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.abilities import Sparse
from psnode.codecs.arrays import Float64s, Words32
from psnode.codecs.base import Bytes, Codec, Floats, Shape, Sink, Source, Words
from psnode.codecs.bounds import check_integer
from psnode.codecs.kernels import adacomp as kernels
from psnode.codecs.kernels.dots import tree_products
from psnode.codecs.kernels.entries import add_at, put_at
from psnode.codecs.kernels.parts import BEGIN, reached
from psnode.codecs.selection import indices
from psnode.codecs.selection.largest import Entries, longer
from psnode.codecs.sinks import InnerProducts, Moved
from psnode.codecs.stages import padded, read_section, write_section
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

_SCALE = 4
_CONVOLUTION, _OTHER = 50, 500  # bin lengths of the paper
_LONGEST = 1 << 14  # as in the paper, which stores an index within a bin in 16 bits
_EXCESS = 1.75


@dataclass(frozen=True, repr=False)
class AdaComp(Sparse, Codec):
    """adacomp:length=.

    `length` T: the number of entries in a bin, at most 16384. If empty, T is as in the paper: 50 for the weights of a
    convolution, which have three or more dimensions, and 500 for all other arrays.

    Entries of an array without a residual are sent if their magnitude is at least half of the largest in their bin. They are
    sent as signs and one common magnitude:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("adacomp"), np.array([4, 1, -4, 0], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [4.0, 0.0, -4.0, 0.0]
    """

    length: int | None = None

    id = "adacomp"
    traits = Traits(shaped=True, one_scale=True, sparse=True, adaptive=True, newest=True)

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        if self.length is not None:
            check_integer(self, "length", 1, _LONGEST)

    def _length(self, shape: Shape) -> int:
        return self.length or (_CONVOLUTION if len(shape) > 2 else _OTHER)

    def _max_body(self, shape: Shape) -> int:
        size = math.prod(shape)
        return _SCALE + 4 + padded(indices.max_nbytes(size, size)) + -(-size // 8)

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return True

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        x, sent = self._select(source)
        body[:_SCALE].view(np.float32)[0] = np.abs(sent.values[0]) if sent.values.size else 0
        used = _SCALE + write_section(body[_SCALE:], indices.write(sent.indices, x.size, body[_SCALE + 4 :]))
        signs = np.packbits(np.signbit(sent.values), bitorder="little")
        body[used : used + signs.size] = signs
        if isinstance(sink, Moved):
            add_at(sink.target.reshape(-1), sent.indices, sent.values, np.float32(sink.weight))
        elif isinstance(sink, InnerProducts):
            sink.record(*tree_products(x[sent.indices], sent.values))
        return used + signs.size

    def _select(self, source: Source) -> tuple[Floats, Entries]:
        """Return the array, flat, and the entries to send with the values to which they decode. Raises NonFiniteGradientError."""
        parts, length, size = source.table(), self._length(source.shape), source.size
        x, totals = source.array().reshape(-1), np.zeros(2)
        step = kernels.stretch_of(length)
        found: Words32 = np.empty(step + size // 64, np.uint32)
        stop, first, count = 0, BEGIN, 0
        while stop < size:
            stop, first, count = kernels.gather(x, parts, length, stop, first, found, count, totals)
            if count < 0:
                source.refuse(reached(parts))
            if stop < size:
                found = longer(found, size + step)
        scale = _scale(totals, -(-size // length), count)
        found = found[: count if scale else 0]
        sent = Entries(np.empty(found.size, np.uint32), np.empty(found.size, np.float32))
        kernels.split(found, scale, *sent)
        return x, sent

    def _entries(self, body: Bytes, shape: Shape) -> Entries:
        size = math.prod(shape)
        if body.size < _SCALE:
            raise PayloadError(f"adacomp: a body of {body.size} bytes ends inside the scale")
        scale = np.float32(body[:_SCALE].view(np.float32)[0])
        side, signs = read_section(body[_SCALE:])
        count = indices.count(side, size)
        if not 0 <= scale < np.inf or np.signbit(scale) or bool(scale) != bool(count):
            raise PayloadError(f"adacomp: the scale is {scale}, and {count} entries are sent")
        unused = int(signs[-1]) >> (count % 8 or 8) if signs.size else 0
        if signs.size != -(-count // 8) or unused:
            raise PayloadError(f"adacomp: {signs.size} bytes of signs for {count} entries, or more than that in them")
        negative = np.unpackbits(signs, count=count, bitorder="little").view(np.bool_)
        return Entries(indices.read(side, size), np.where(negative, -scale, scale))

    def _decode(self, body: Bytes, out: Floats) -> None:
        put_at(out.reshape(-1), *self._entries(body, out.shape))

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        add_at(out.reshape(-1), *self._entries(body, out.shape), weight)


def _scale(totals: Float64s, bins: int, count: int) -> np.float32:
    """Return the scale s, given the sum of the bins' largest magnitudes and the sum of the `count` magnitudes sent."""
    return np.float32(min(totals[0] / bins, _EXCESS * totals[1] / count)) if count else np.float32(0)
