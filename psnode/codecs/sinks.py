"""Sinks: uses of y = decode(payload) while an array is coded.

    NOTHING             no use
    Subtracted(target)  target -= y: the loss of coding stays
    Added(target)       target += y
    InnerProducts()     <x, y> and <y, y>

A codec that cannot do this in the sweep that codes decodes once more: see Codec._coded.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from psnode.codecs.arrays import Float64s, Floats, check_target


class Sink:
    """Use of the decoded values; this class itself makes none."""

    def dots(self, size: int) -> Float64s:
        """Room in which kernels leave <x, y> and <y, y> of `size` coordinates; none if they are not wanted."""
        return np.zeros(0)


NOTHING = Sink()


class Moved(Sink):
    """target += weight y; `target` is float32, contiguous and of the array's shape."""

    weight: ClassVar[int]

    def __init__(self, target: Floats) -> None:
        check_target(target, "the target of a sink")
        self.target = target


class Subtracted(Moved):
    """target -= y."""

    weight = -1


class Added(Moved):
    """target += y."""

    weight = 1


class InnerProducts(Sink):
    """The inner products `xy` = <x, y> and `yy` = <y, y>, by trees (psnode.codecs.kernels.dots); 0 before anything was coded."""

    xy: float = 0.0
    yy: float = 0.0

    def dots(self, size: int) -> Float64s:
        from psnode.codecs.kernels.dots import begun

        return begun(size)

    def record(self, xy: float, yy: float) -> None:
        """Take the inner products down."""
        self.xy, self.yy = xy, yy
