"""Count-mean sketch: r rows of signed sums; the estimate of a coordinate is the mean of its cells. Encode and decode are linear.

psnode.codecs.sketches.linear describes the cells and the layout. The codec is unbiased. For d coordinates and n cells in total,
the error is

    E||decode - x||^2 = (d - 1) / n ||x||^2

for any division of the cells into rows. The sum of sketches decodes to the sum of their decoded arrays. Therefore error
feedback at every sender is exact although the receiver decodes only the sum.

Sources: the signed sums are from Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", ICALP 2002; the mean
in place of the median is the estimator of Alon, Matias, Szegedy, "The space complexity of approximating the frequency moments",
STOC 1996.
"""

from __future__ import annotations

from dataclasses import dataclass

from psnode.codecs.sketches.linear import LinearSketch


@dataclass(frozen=True, repr=False)
class CountMean(LinearSketch):
    """countmean:rows=5,ratio=0.1,damped=false: parameters of LinearSketch. More rows spread the same total error more evenly.

    A merged payload decodes to the sum of the decoded payloads:

    >>> import numpy as np
    >>> from psnode.codecs import get_codec
    >>> from psnode.codecs.rng import Key
    >>> codec, x, key = get_codec("countmean"), np.arange(100, dtype=np.float32), Key.derive(1)
    >>> once, twice = codec.encode(x, key), codec.merge([codec.encode(x, key), codec.encode(x, key)])
    >>> bool(np.allclose(codec.decode(twice), 2 * codec.decode(once)))
    True
    """

    id = "countmean"
    median = False
