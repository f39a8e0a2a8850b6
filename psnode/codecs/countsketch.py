"""Count sketch: r rows of signed sums, a coordinate estimated by the median of its cells. Linear: sketches add up undecoded.

Cells and layout: see psnode.codecs.sketches.linear. The error of each row's estimate is symmetric and independent of the other
rows', so their median is unbiased. It is off by more than 2 ||x|| / sqrt(columns) in half of the rows at a time with a
probability that falls exponentially with r; a few large coordinates among many small ones come out best.

The median is not linear, the sketch is: the decoded sum of several sketches differs from the sum of
their decoded arrays by noise of mean 0. Senders with error feedback remember the loss of their own sketch, so that the receiver
of theirs has to decode sketch by sketch.

Sources: Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002; as gradient compression:
Ivkin et al., "Communication-efficient distributed SGD with sketching", NeurIPS 2019; Rothchild et al., "FetchSGD", ICML 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from psnode.codecs.sketches.linear import LinearSketch


@dataclass(frozen=True, repr=False)
class CountSketch(LinearSketch):
    """countsketch:rows=5,ratio=0.1,damped=false: parameters of LinearSketch. An odd number of rows is best.

    A coordinate among zeros shares its cells with nothing else:

    >>> import numpy as np
    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("countsketch"), np.zeros(1000, np.float32)
    >>> x[7] = -5
    >>> float(codec.decode(codec.encode(x, np.random.default_rng(1)))[7])
    -5.0
    """

    id = "countsketch"
    median = True
