"""A reader of linear sketches in NumPy, written from the byte table alone; it uses no code of psnode."""

from __future__ import annotations

import struct

import numpy as np

from tests.codecs.golden_reader import header
from tests.codecs.threefry_oracle import stage_words

COUNTSKETCH, COUNTMEAN = 24, 25


def hashes(words: tuple[int, int], stream: int, size: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the column and the sign of every coordinate, for the row of the sketch that has this stream."""
    blocks = -(-size // 256)
    drawn = stage_words(words, stream, 64 * blocks).reshape(blocks, 64, 4).transpose(0, 2, 1).reshape(-1)[:size]
    return (drawn >> np.uint64(1)) * np.uint64(columns) >> np.uint64(31), 1.0 - 2.0 * (drawn & np.uint64(1))


def read_sketch(data: bytes) -> np.ndarray:
    """Return the values of a payload of countsketch or countmean."""
    (number,), shape, body = header(data)
    w0, w1, rows, columns = struct.unpack_from("<QQII", body)
    cells = np.frombuffer(body, "<f4", offset=24).reshape(rows, columns)
    size = int(np.prod(shape))
    estimates = []
    for row in range(rows):
        column, sign = hashes((w0, w1), number + 256 * row, size, columns)
        estimates.append(cells[row][column.astype(np.int64)] * sign.astype(np.float32))
    if number == COUNTSKETCH:
        return np.median(np.array(estimates), axis=0).astype(np.float32)
    return (np.sum(np.array(estimates, np.float64), axis=0) / rows).astype(np.float32)
