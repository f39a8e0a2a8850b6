"""Random words as a function of a key, a stream and a counter, by Threefry 4x32-13 (psnode.codecs.kernels.threefry).

A key consists of the two uint64 words w0 and w1 that encode draws. Call c of stream s returns four uint32 words. They are the
output of Threefry for the counter (c, s, 0, 0) and the key (low w0, high w0, low w1, high w1), where low and high denote the
halves of 32 bits. The lowest byte of a stream's number is the wire number of the stage that uses it, so that no two stages of a
chain share randomness.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Words, Words32
from psnode.codecs.kernels.cache_hints import wide
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.threefry import Four, encrypt
from psnode.errors import CodecValueError

BLOCK = 64  # calls made by one `fill`
HALF = 4 * BLOCK  # words returned by one `fill`: 16 bits for each of 512 coordinates
_LOW = 0xFFFFFFFF


class Draws(NamedTuple):
    """The source of a stage's random words: the two words of the key, and the number of the stage's stream."""

    key: Words
    stream: int


@inlined
def _split(key: Words) -> Four:
    """Return the four uint32 of the Threefry key that the two uint64 words of `key` hold."""
    low = np.uint64(_LOW)
    half = np.uint64(32)
    return np.uint32(key[0] & low), np.uint32(key[0] >> half), np.uint32(key[1] & low), np.uint32(key[1] >> half)


@inlined
def _call(key: Four, stream: int, counter: int) -> Four:
    return encrypt((np.uint32(counter), np.uint32(stream), np.uint32(0), np.uint32(0)), key)


@inlined
def call(key: Words, stream: int, counter: int) -> Four:
    """Return the four random words of call number `counter` of `stream`."""
    return _call(_split(key), stream, counter)


@inlined
def fill_here(out: Words32, key: Words, stream: int, first: int) -> None:
    """Fill `out` as `fill` does, but inlined into the calling kernel. The calling kernel should call `wide`."""
    split = _split(key)
    for j in range(BLOCK):
        a, b, c, d = _call(split, stream, first + j)
        out[j] = a
        out[BLOCK + j] = b
        out[2 * BLOCK + j] = c
        out[3 * BLOCK + j] = d


@kernel
def fill(out: Words32, key: Words, stream: int, first: int) -> None:
    """Fill `out` (256 uint32) with the words of calls first..first+63 of `stream`, in four planes.

    Word w of call first + j goes to out[64*w + j].
    """
    wide()
    fill_here(out, key, stream, first)


@kernel
def _one(counter: Words32, key: Words32) -> Words32:
    out = np.empty(4, np.uint32)
    words = encrypt((counter[0], counter[1], counter[2], counter[3]), (key[0], key[1], key[2], key[3]))
    out[0], out[1], out[2], out[3] = words
    return out


def threefry(counter: Words32, key: Words32) -> Words32:
    """Return the output of Threefry 4x32-13, four uint32, for a counter and a key of four uint32 each."""
    return _one(counter, key)


def words(key: Words, stream: int, calls: int, first: int = 0) -> Words32:
    """Return the words of calls first..first+calls-1 of `stream` under `key`, uint32, shape (calls, 4)."""
    blocks = -(-calls // BLOCK)
    planes = np.empty((blocks, 4 * BLOCK), np.uint32)
    for index in range(blocks):
        fill(planes[index], key, stream, first + index * BLOCK)
    return planes.reshape(blocks, 4, BLOCK).transpose(0, 2, 1).reshape(-1, 4)[:calls].copy()


@dataclass(frozen=True)
class Key:
    """A source of randomness for one call of encode: its method `integers` always returns the same two words."""

    words: tuple[int, int]

    @classmethod
    def derive(cls, *parts: int | str) -> Key:
        """Return the key that is a function of `parts`, for example (seed, purpose, rank, step, group, segment).

        A part is an integer in 0..2**64-1, or a name of at most 8 UTF-8 bytes, which are read as a little-endian integer. The
        state starts as (number of parts, 0, 0, 0). Threefry encrypts it once per part, with the key (low 32 bits, high 32 bits,
        0, 0) of the part. The last state is the result. Raises CodecValueError.
        """
        state = np.array([len(parts), 0, 0, 0], np.uint32)
        for part in parts:
            number = int.from_bytes(part.encode(), "little") if isinstance(part, str) else int(part)
            if not 0 <= number < 2**64:
                raise CodecValueError(f"a part of a key must be in 0..2**64-1 or a name of at most 8 bytes, not {part!r}")
            state = _one(state, np.array([number & _LOW, number >> 32, 0, 0], np.uint32))
        first, second = state.view(np.uint64).tolist()
        return cls((first, second))

    def integers(self, low: int, *, size: int, dtype: type[np.uint64]) -> Words:
        """Return the two words. Raises CodecValueError unless the call asks for two words below 2**64, as encode does."""
        if low != 2**64 or size != 2:
            raise CodecValueError(f"a Key holds two words below 2**64, not {size} below {low}")
        return np.array(self.words, dtype)
