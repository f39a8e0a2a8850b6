"""The designs that psnode contains: a channel for every rate, and masks of frozen and flat bits for every block length."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np

from psnode.codecs.polarcodes import rate_channel as channels
from psnode.codecs.polarcodes.lanes import Llrs
from psnode.codecs.polarcodes.rate_channel import CELLS, Channel
from psnode.codecs.polarcodes.schedule import Bools, Schedule, schedule
from psnode.codecs.polarcodes.vectors import LANES
from psnode.errors import CodecSpecError

EDITION = 1  # increase with any change of a design, a channel or a rule of the trees: hosts with different editions do not agree
RATES = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
LENGTHS = (6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18)  # base-2 logarithms of the block lengths
CHANNELS = {
    0.5: Channel(3, 0.8, 0.5),
    1.0: Channel(3, 0.7, 0.25),
    1.5: Channel(4, 0.55, 0.125),
    2.0: Channel(4, 0.4, 0.0625),
    3.0: Channel(5, 0.2, 0.015625),
    4.0: Channel(6, 0.1, 0.00390625),
}


class Masks2(NamedTuple):
    """Masks of the frozen bits and of the flat bits of each level, bool, of shape (levels, N)."""

    frozen: Bools
    flat: Bools


class Tables(NamedTuple):
    """The LLRs of a channel as integers, for each level. The LLRs of the prior are repeated to 32 entries."""

    posterior: list[Llrs]
    prior: list[Llrs]


def name_of(rate: float) -> str:
    """Return the name of the file that holds the designs of a rate."""
    return f"rate-{rate:g}.npz"


def pack(masks: Masks2) -> np.ndarray:
    """Return the masks packed into bytes, of shape (2, levels, N / 8)."""
    return np.packbits(np.stack(masks), axis=-1)


@cache
def load(rate: float, log_length: int) -> Masks2:
    """Return the masks for blocks of 2^log_length values. Raise CodecSpecError if there is no such design."""
    with np.load(Path(str(files("psnode.codecs.polarcodes"))) / "designs" / name_of(rate)) as stored:
        if f"n{log_length}" not in stored.files:
            raise CodecSpecError(
                f"polar: no design for rate={rate:g}, blocks of 2^{log_length}; python -m studies.polar_design makes it"
            )
        both = np.unpackbits(stored[f"n{log_length}"], axis=-1, count=1 << log_length).astype(np.bool_)
    return Masks2(both[0], both[1])


@cache
def schedules(rate: float, log_length: int) -> list[Schedule]:
    """Return the schedule of every level, for blocks of 2^log_length values at `rate`."""
    masks = load(rate, log_length)
    return [schedule(*level) for level in zip(*masks, strict=True)]


@cache
def tables(rate: float) -> Tables:
    """Return the LLR tables of the channel of `rate`."""
    channel = CHANNELS[rate]
    posterior = [channels.in_units(each).reshape(-1) for each in channels.posterior_llrs(channel)]
    assert all(each.size == CELLS << level for level, each in enumerate(posterior))
    return Tables(posterior, [np.resize(channels.in_units(each), LANES) for each in channels.prior_llrs(channel)])
