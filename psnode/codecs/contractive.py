"""The contractive form of a codec Q, for feedback loops: it decodes to c Q(x) with c = <x, Q(x)> / <Q(x), Q(x)>.

This c minimises the error among all multiples of Q(x): ||x - c Q(x)||^2 = ||x||^2 (1 - cos^2(x, Q(x))) <= ||x||^2, whatever the
variance of Q is. An unbiased Q has an expected error E||x - Q(x)||^2 of omega ||x||^2. Without the factor c, the residual of a
feedback loop would grow without bound if omega >= 1.

    body   float32 c, then the body of Q

The inner products are summed by trees over rows (psnode.codecs.kernels.dots), so that c has the same bits on all processors. c
is 0 if Q(x) is 0. If a value of c Q(x) might leave float32's range, c is limited to -1..1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from psnode.codecs.base import Bytes, Codec, Floats, Indices, Measured, RandomSource, Shape, Sink, Source, Words, readonly
from psnode.codecs.sinks import InnerProducts
from psnode.codecs.spec import Spec
from psnode.codecs.stages import check_finite
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

if TYPE_CHECKING:
    from psnode.codecs.selection.largest import Entries

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, repr=False)
class Contractive(Codec):
    """contractive(SPEC): the contractive form of the wrapped codec, which `codec.contractive()` returns.

    The decoded value y is the multiple of Q(x) with the least error, so that y is orthogonal to this error:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("qsgd:levels=1").contractive(), np.arange(1, 65, dtype=np.float32)
    >>> y = codec.decode(codec.encode(x, np.random.default_rng(1)))
    >>> bool(abs(np.dot(x - y, y)) < 1e-5 * np.dot(x, x))
    True
    """

    codec: Codec

    id = "contractive"

    @property
    def traits(self) -> Traits:
        """The wrapped codec's traits that concern shape, scale and sparsity. The contractive form is always biased."""
        own = self.codec.traits
        return Traits(shaped=own.shaped, one_scale=own.one_scale, sparse=own.sparse)

    @property
    def stages(self) -> tuple[str, ...]:
        """The id `contractive`, followed by the ids of the wrapped codec's stages."""
        return (self.id, *self.codec.stages)

    @property
    def spec(self) -> Spec:
        """The spec of the wrapped codec, in contractive(...)."""
        return Spec(True, self.codec.spec.stages)

    def fit(self, x: Floats, rng: RandomSource) -> Contractive:
        """Return the contractive form of the wrapped codec fitted to `x`."""
        return Contractive(self.codec.fit(x, rng))

    def split(self, body: Bytes) -> tuple[np.float32, Bytes]:
        """Return the factor c and the body of the wrapped codec Q. Raises PayloadError unless c is finite."""
        return self._scale(body), body[4:]

    def _max_body(self, shape: Shape) -> int:
        return 4 + self.codec._max_body(shape)

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return True

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        measured = InnerProducts()
        used = 4 + self.codec._coded(source, key, body[4:], measured)
        body[:4].view(np.float32)[0] = factor(measured.xy, measured.yy)
        self._apply(sink, source, readonly(body[:used]))
        return used

    def _decode(self, body: Bytes, out: Floats) -> None:
        scale = self._scale(body)
        self.codec._decode(body[4:], out)
        with np.errstate(over="ignore"):
            out *= scale
        if abs(scale) > 1:
            check_finite(out.reshape(-1), self.id)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        scale = self._scale(body)
        if abs(scale) > 1:
            self._measure(body, out.shape, None).add(out, weight)
        elif _folds(weight):
            self.codec._decode_add(body[4:], out, np.float32(weight * scale))
        else:
            super()._decode_add(body, out, weight)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        """Return |c| times the norm of Q's body, and a function that adds the decoded values.

        If a decoded value might leave float32's range, the norm is computed from the decoded values instead.
        """
        scale, inner = self._scale(body), self.codec._measure(body[4:], shape, room)
        norm = abs(float(scale)) * inner.norm
        if abs(scale) > 1 and norm > _LARGEST / 2:
            return super()._measure(body, shape, None)

        def add(out: Floats, weight: np.float32) -> None:
            if _folds(weight):
                inner.add(out, np.float32(weight * scale))
            else:
                super(Contractive, self)._decode_add(body, out, weight)

        return Measured(norm, add)

    def _entries(self, body: Bytes, shape: Shape) -> Entries | None:
        scale, found = self._scale(body), self.codec._entries(body[4:], shape)
        if found is None:
            return None
        with np.errstate(over="ignore"):
            values = found.values * scale
        if abs(scale) > 1:
            check_finite(values, self.id)
        return found._replace(values=values)

    def _support(self, body: Bytes, shape: Shape) -> Indices:
        self._scale(body)
        return self.codec._support(body[4:], shape)

    def _scale(self, body: Bytes) -> np.float32:
        if body.size < 4:
            raise PayloadError(f"contractive: a body of {body.size} bytes ends inside the scale")
        scale = np.float32(body[:4].view(np.float32)[0])
        if not np.isfinite(scale):
            raise PayloadError(f"contractive: the scale is {scale}")
        return scale


def factor(xy: float, yy: float) -> np.float32:
    """Return c = `xy` / `yy`, given the inner products `xy` = <x, y> and `yy` = <y, y>, where y = Q(x)."""
    scale = xy / yy if yy else 0.0
    if abs(scale) * math.sqrt(yy) > _LARGEST:  # c Q might leave float32's range: limit c to -1..1
        scale = max(-1.0, min(scale, 1.0))
    return np.float32(scale)


def _folds(weight: np.float32) -> bool:
    """Return True if `weight` is plus or minus a power of two. Then (weight c) y and weight (c y) are rounded equally."""
    return abs(math.frexp(float(weight))[0]) == 0.5
