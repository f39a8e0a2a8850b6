"""Philox 4x32-10 in NumPy, written from the paper; it shares no code with psnode."""

from __future__ import annotations

import numpy as np


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """counter (n, 4) -> (n, 4) words below 2^32, all as Python-free uint64 arithmetic."""
    low = np.uint64(0xFFFFFFFF)
    c = [counter[:, word].astype(np.uint64) for word in range(4)]
    k0, k1 = key
    for _ in range(10):
        left, right = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (right >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            right & low,
            (left >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            left & low,
        ]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return np.stack(c, axis=1)


def stage_words(words: tuple[int, int], stream: int, calls: int) -> np.ndarray:
    """(calls, 4): what a stage draws from stream `stream` under the two words of an encode call."""
    counter = np.zeros((calls, 4), np.uint64)
    counter[:, 0] = np.arange(calls)
    counter[:, 1] = stream
    counter[:, 2], counter[:, 3] = words[1] % 2**32, words[1] >> 32
    return philox(counter, (words[0] % 2**32, words[0] >> 32))


def halves(words: tuple[int, int], stream: int, count: int) -> np.ndarray:
    """16 random bits for each of `count` coordinates.

    64 calls serve 512 coordinates: coordinate i takes word i / 64 of call i mod 64, its low half if i < 256; i - 256 the high.
    """
    blocks = -(-count // 512)
    planes = stage_words(words, stream, 64 * blocks).reshape(blocks, 64, 4).transpose(0, 2, 1).reshape(blocks, 256)
    return np.concatenate([planes & np.uint64(0xFFFF), planes >> np.uint64(16)], axis=1).reshape(-1)[:count]
