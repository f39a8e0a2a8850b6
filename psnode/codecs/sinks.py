"""Sinks: uses of y = decode(payload) while an array x is encoded.

    NOTHING             no use
    Subtracted(target)  target -= y, which leaves the coding error if target held x
    Added(target)       target += y
    InnerProducts()     computes <x, y> and <y, y>

If a codec cannot serve a sink in its encoding sweep, the payload is decoded afterwards for the sink: see Codec._coded.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from psnode.codecs.arrays import Float64s, Floats, check_target


class Sink:
    """A use of the decoded values while an array is encoded. The base class does nothing with them."""

    def dots(self, size: int) -> Float64s:
        """Return an array in which kernels accumulate <x, y> and <y, y> of `size` coordinates.

        It is empty if they are not needed.
        """
        return np.zeros(0)


NOTHING = Sink()


class Moved(Sink):
    """Sink that computes target += weight * y. `target` is float32, contiguous and of the shape of x."""

    weight: ClassVar[int]

    def __init__(self, target: Floats) -> None:
        check_target(target, "the target of a sink")
        self.target = target


class Subtracted(Moved):
    """Sink that computes target -= y."""

    weight = -1


class Added(Moved):
    """Sink that computes target += y."""

    weight = 1


class InnerProducts(Sink):
    """Sink that computes the inner products `xy` = <x, y> and `yy` = <y, y>, which are 0 before encoding.

    They are summed by trees (psnode.codecs.kernels.dots).
    """

    xy: float = 0.0
    yy: float = 0.0

    def dots(self, size: int) -> Float64s:
        from psnode.codecs.kernels.dots import begun

        return begun(size)

    def record(self, xy: float, yy: float) -> None:
        """Store the inner products."""
        self.xy, self.yy = xy, yy
