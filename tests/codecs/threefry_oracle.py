"""Threefry 4x32 in NumPy, written from the paper; it shares no code with psnode."""

from __future__ import annotations

import numpy as np

# left rotations of the two pairs in rounds 0 to 7, which repeat every 8 rounds
ROTATIONS = [(10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20)]


def _rotated(x: np.ndarray, left: int) -> np.ndarray:
    return x << np.uint32(left) | x >> np.uint32(32 - left)


def threefry(counter: np.ndarray, key: tuple[int, int, int, int], rounds: int = 13) -> np.ndarray:
    """Return the random words (n, 4) below 2^32 of the counters (n, 4); sums are modulo 2^32."""
    schedule = np.array([*key, key[0] ^ key[1] ^ key[2] ^ key[3] ^ 0x1BD11BDA], np.uint32)
    x = counter.astype(np.uint32) + schedule[:4]
    for r in range(rounds):
        order = [0, 3, 2, 1] if r % 2 else [0, 1, 2, 3]  # words 1 and 3 are swapped in every second round
        a, b, c, d = x[:, order].T
        a, c = a + b, c + d
        b, d = _rotated(b, ROTATIONS[r % 8][0]) ^ a, _rotated(d, ROTATIONS[r % 8][1]) ^ c
        x = np.stack([a, b, c, d], axis=1)[:, order]
        if r % 4 == 3:
            injected = np.roll(schedule, -(r // 4 + 1))[:4]
            x = x + injected + np.array([0, 0, 0, r // 4 + 1], np.uint32)
    return x.astype(np.uint64)


def call_words(words: tuple[int, int], stream: int, calls: np.ndarray) -> np.ndarray:
    """Return the words, shape (n, 4), of the calls `calls` (n,) of `stream`, with the two words of an encode call as the key."""
    counter = np.zeros((calls.size, 4), np.uint64)
    counter[:, 0], counter[:, 1] = calls, stream
    return threefry(counter, (words[0] % 2**32, words[0] >> 32, words[1] % 2**32, words[1] >> 32))


def stage_words(words: tuple[int, int], stream: int, calls: int) -> np.ndarray:
    """Return the draws of a stage, shape (calls, 4), from `stream`, with the two words of an encode call as the key."""
    return call_words(words, stream, np.arange(calls))


def halves(words: tuple[int, int], stream: int, count: int) -> np.ndarray:
    """Return 16 random bits for each of `count` coordinates.

    64 calls serve 512 coordinates. Coordinate i < 256 takes the low half of word i // 64 of call i mod 64. Coordinate i >=
    256 takes the high half of the word that i - 256 takes.
    """
    blocks = -(-count // 512)
    planes = stage_words(words, stream, 64 * blocks).reshape(blocks, 64, 4).transpose(0, 2, 1).reshape(blocks, 256)
    return np.concatenate([planes & np.uint64(0xFFFF), planes >> np.uint64(16)], axis=1).reshape(-1)[:count]
