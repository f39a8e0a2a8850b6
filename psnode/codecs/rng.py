"""Philox 4x32-10: random words as a function of a key, a stream and a counter.

Call n of stream s under the two words (w0, w1) that encode drew is Philox with key (low w0, high w0) and counter
(n, s, low w1, high w1): four uint32. The first byte of a stream is the wire number of the stage that uses it, so that no
two stages of a chain share randomness.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from psnode.codecs.base import Words
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.memory import wide
from psnode.errors import CodecValueError

Words32 = npt.NDArray[np.uint32]
Word = np.uint64

BLOCK = 64  # calls that `fill` makes at a time
HALF = 4 * BLOCK  # words they give: 16 bits for each of 512 coordinates
_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


@inlined
def _philox(c0: Word, c1: Word, c2: Word, c3: Word, k0: Word, k1: Word) -> tuple[Word, Word, Word, Word]:
    """Four words, each in a uint64: that is what lets a loop over calls be vectorised."""
    low = np.uint64(_LOW)
    half = np.uint64(32)
    for _ in range(10):
        p0 = np.uint64(_MULTIPLIERS[0]) * c0
        p1 = np.uint64(_MULTIPLIERS[1]) * c2
        c0 = (p1 >> half) ^ c1 ^ k0
        c1 = p1 & low
        c2 = (p0 >> half) ^ c3 ^ k1
        c3 = p0 & low
        k0 = (k0 + np.uint64(_WEYL[0])) & low
        k1 = (k1 + np.uint64(_WEYL[1])) & low
    return c0, c1, c2, c3


@inlined
def call(key: Words, stream: int, counter: int) -> tuple[Word, Word, Word, Word]:
    """The four words, as uint64, of call `counter` of `stream`."""
    low = np.uint64(_LOW)
    half = np.uint64(32)
    return _philox(np.uint64(counter), np.uint64(stream), key[1] & low, key[1] >> half, key[0] & low, key[0] >> half)


@kernel
def fill(out: Words32, key: Words, stream: int, first: int) -> None:
    """The words of calls first..first+63 in four planes: word w of call first+j goes to out[64*w + j]. `out`: 256 uint32."""
    wide()
    low = np.uint64(_LOW)
    half = np.uint64(32)
    k0 = key[0] & low
    k1 = key[0] >> half
    c2 = key[1] & low
    c3 = key[1] >> half
    for j in range(BLOCK):
        a, b, c, d = _philox(np.uint64(first + j), np.uint64(stream), c2, c3, k0, k1)
        out[j] = np.uint32(a)
        out[BLOCK + j] = np.uint32(b)
        out[2 * BLOCK + j] = np.uint32(c)
        out[3 * BLOCK + j] = np.uint32(d)


@kernel
def _one(counter: Words32, key: Words32) -> Words32:
    out = np.empty(4, np.uint32)
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    a, b, c, d = _philox(np.uint64(counter[0]), np.uint64(counter[1]), np.uint64(counter[2]), np.uint64(counter[3]), k0, k1)
    out[0], out[1], out[2], out[3] = np.uint32(a), np.uint32(b), np.uint32(c), np.uint32(d)
    return out


def philox(counter: Words32, key: Words32) -> Words32:
    """Philox 4x32-10 itself: four uint32 from a counter of four and a key of two."""
    return _one(counter, key)


def words(key: Words, stream: int, calls: int, first: int = 0) -> Words32:
    """The words of calls first..first+calls-1 of `stream` under `key`, shape (calls, 4)."""
    blocks = -(-calls // BLOCK)
    planes = np.empty((blocks, 4 * BLOCK), np.uint32)
    for index in range(blocks):
        fill(planes[index], key, stream, first + index * BLOCK)
    return planes.reshape(blocks, 4, BLOCK).transpose(0, 2, 1).reshape(-1, 4)[:calls].copy()


@dataclass(frozen=True)
class Key:
    """A source of randomness for one encode call: it always answers with the same two words."""

    words: tuple[int, int]

    @classmethod
    def derive(cls, *parts: int | str) -> Key:
        """The key of a tuple such as (seed, purpose, rank, step, group, segment).

        A part is an integer in 0..2**64-1, or a name of at most 8 bytes, which stands for its UTF-8 bytes as a little-endian
        integer. Philox is chained: the state, at first (number of parts, 0, 0, 0), is encrypted under one part after another.
        """
        state = np.array([len(parts), 0, 0, 0], np.uint32)
        for part in parts:
            number = int.from_bytes(part.encode(), "little") if isinstance(part, str) else int(part)
            if not 0 <= number < 2**64:
                raise CodecValueError(f"a part of a key must be in 0..2**64-1 or a name of at most 8 bytes, not {part!r}")
            state = _one(state, np.array([number & _LOW, number >> 32], np.uint32))
        first, second = state.view(np.uint64).tolist()
        return cls((first, second))

    def integers(self, low: int, *, size: int, dtype: type[np.uint64]) -> Words:
        """The two words, whatever is asked: what encode draws."""
        if low != 2**64 or size != 2:
            raise CodecValueError(f"a Key holds two words below 2**64, not {size} below {low}")
        return np.array(self.words, dtype)
