"""The designs that this process has used, joined into a few arrays so that one kernel can use the design of any superblock."""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from psnode.codecs.polarcodes import designs
from psnode.codecs.polarcodes.blocks import Shelf


class Shelved(NamedTuple):
    """The position of a design on the shelf: its first level, its number of levels, and its rows of raw and of coded bits."""

    first: int
    levels: int
    raw: int
    coded: int


_lock = threading.Lock()
_places: dict[tuple[float, int], Shelved] = {}
_tables: dict[float, list[tuple[int, int]]] = {}  # the offsets of the tables of each level of a channel
_shelf = Shelf(np.empty((0, 3), np.int64), np.empty((0, 9), np.int64), np.empty(0, np.int16), np.empty(0, np.int16))


def place_of(rate: float, log_length: int) -> Shelved:
    """Return the position of a design on the shelf. If the design is not there yet, it is added first."""
    found = _places.get((rate, log_length))
    return _put(rate, log_length) if found is None else found


def shelf() -> Shelf:
    """Return all designs that place_of has added."""
    return _shelf


def _put(rate: float, log_length: int) -> Shelved:
    global _shelf
    with _lock:
        if (rate, log_length) in _places:
            return _places[rate, log_length]
        levels = designs.schedules(rate, log_length)
        old = _shelf
        posterior, prior = [old.posterior], [old.prior]
        if rate not in _tables:
            tables = designs.tables(rate)
            ends = np.cumsum([old.posterior.size, *(each.size for each in tables.posterior)]).tolist()
            _tables[rate] = [
                (end, old.prior.size + index * each.size)
                for index, (end, each) in enumerate(zip(ends, tables.prior, strict=False))
            ]
            posterior += tables.posterior
            prior += tables.prior
        steps, rows = [old.steps], []
        at = len(old.steps)
        for level, tables_at in zip(levels, _tables[rate], strict=True):
            steps += [level.encode, level.decode]
            middle, end = at + len(level.encode), at + len(level.encode) + len(level.decode)
            rows.append((at, middle, middle, end, level.raw, level.drawn, int(level.flat), *tables_at))
            at = end
        _shelf = Shelf(
            np.concatenate(steps), np.concatenate([old.levels, rows]), np.concatenate(posterior), np.concatenate(prior)
        )
        place = Shelved(len(old.levels), len(levels), sum(each.raw for each in levels), sum(each.coded for each in levels))
        _places[rate, log_length] = place
        return place
