"""Count sketch: r rows of signed sums; the estimate of a coordinate is the median of its cells. Sketches can be added undecoded.

psnode.codecs.sketches.linear describes the cells and the layout. Each row gives one estimate of a coordinate. The errors of
these estimates are symmetric and independent, so that their median is unbiased. The probability that the median is off by more
than 2 ||x|| / sqrt(columns) falls exponentially with r. The estimates are best for a few large coordinates among many small
ones.

The sketch is linear but the median is not: the decoded sum of several sketches differs from the sum of their decoded arrays by
noise of mean 0. With error feedback a sender keeps the error of its own decoded sketch. The receiver must therefore decode
every sketch separately.

Sources: Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002; as gradient compression: Ivkin et
al., "Communication-efficient distributed SGD with sketching", NeurIPS 2019; Rothchild et al., "FetchSGD", ICML 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from psnode.codecs.sketches.linear import LinearSketch


@dataclass(frozen=True, repr=False)
class CountSketch(LinearSketch):
    """countsketch:rows=5,ratio=0.1,damped=false: parameters of LinearSketch. An odd number of rows is best.

    A coordinate among zeros is decoded exactly, because nothing else is added to its cells:

    >>> import numpy as np
    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("countsketch"), np.zeros(1000, np.float32)
    >>> x[7] = -5
    >>> float(codec.decode(codec.encode(x, np.random.default_rng(1)))[7])
    -5.0
    """

    id = "countsketch"
    median = True
