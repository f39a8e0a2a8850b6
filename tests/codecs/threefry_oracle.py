"""Threefry 4x32 in NumPy, written from the paper; it shares no code with psnode."""

from __future__ import annotations

import numpy as np

# Left rotations of the two pairs in rounds 0 to 7, then from the beginning again.
ROTATIONS = [(10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20)]


def _rotated(x: np.ndarray, left: int) -> np.ndarray:
    return x << np.uint32(left) | x >> np.uint32(32 - left)


def threefry(counter: np.ndarray, key: tuple[int, int, int, int], rounds: int = 13) -> np.ndarray:
    """counter (n, 4) -> (n, 4) words below 2^32, as uint64. The sums are those of uint32 arrays: modulo 2^32."""
    schedule = np.array([*key, key[0] ^ key[1] ^ key[2] ^ key[3] ^ 0x1BD11BDA], np.uint32)
    x = counter.astype(np.uint32) + schedule[:4]
    for r in range(rounds):
        order = [0, 3, 2, 1] if r % 2 else [0, 1, 2, 3]  # words 1 and 3 change places from round to round
        a, b, c, d = x[:, order].T
        a, c = a + b, c + d
        b, d = _rotated(b, ROTATIONS[r % 8][0]) ^ a, _rotated(d, ROTATIONS[r % 8][1]) ^ c
        x = np.stack([a, b, c, d], axis=1)[:, order]
        if r % 4 == 3:
            injected = np.roll(schedule, -(r // 4 + 1))[:4]
            x = x + injected + np.array([0, 0, 0, r // 4 + 1], np.uint32)
    return x.astype(np.uint64)


def call_words(words: tuple[int, int], stream: int, calls: np.ndarray) -> np.ndarray:
    """(n, 4): the words of the given calls (n,) of `stream` under the two words of an encode call."""
    counter = np.zeros((calls.size, 4), np.uint64)
    counter[:, 0], counter[:, 1] = calls, stream
    return threefry(counter, (words[0] % 2**32, words[0] >> 32, words[1] % 2**32, words[1] >> 32))


def stage_words(words: tuple[int, int], stream: int, calls: int) -> np.ndarray:
    """(calls, 4): the draws of a stage from stream `stream` under the two words of an encode call."""
    return call_words(words, stream, np.arange(calls))


def halves(words: tuple[int, int], stream: int, count: int) -> np.ndarray:
    """16 random bits for each of `count` coordinates.

    64 calls serve 512 coordinates: coordinate i takes word i / 64 of call i mod 64, its low half if i < 256; i - 256 the high.
    """
    blocks = -(-count // 512)
    planes = stage_words(words, stream, 64 * blocks).reshape(blocks, 64, 4).transpose(0, 2, 1).reshape(blocks, 256)
    return np.concatenate([planes & np.uint64(0xFFFF), planes >> np.uint64(16)], axis=1).reshape(-1)[:count]
