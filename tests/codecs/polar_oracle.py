"""A decoder of polar payloads in NumPy, written from docs/payload-format.md and the stored designs; it uses no code of psnode."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.special import expit, logsumexp

import psnode
from tests.codecs.golden_reader import header, section
from tests.codecs.index_oracle import read_set
from tests.codecs.symbols_oracle import read_ans
from tests.codecs.threefry_oracle import call_words

Array = np.ndarray
CHANNELS = {
    1: (3, 0.8, 0.5),
    2: (3, 0.7, 0.25),
    3: (4, 0.55, 0.125),
    4: (4, 0.4, 0.0625),
    6: (5, 0.2, 0.015625),
    8: (6, 0.1, 0.00390625),
}
DESIGNS = Path(psnode.__file__).parent / "codecs" / "polarcodes" / "designs"


def prior(halves: int) -> list[Array]:
    """Return the prior log-likelihood ratios ln P(0) / P(1) of a bit, as integers. There is an array per level, indexed by
    the bits of the levels below.
    """
    levels, step, noise = CHANNELS[halves]
    k = np.arange(2**levels)
    weight = -(((k - (k.size - 1) / 2) * step) ** 2) / (2 * (1 - noise))
    found = []
    for level in range(levels):
        below = np.arange(2**level)
        sums = [[logsumexp(weight[k % 2 ** (level + 1) == c + bit * 2**level]) for c in below] for bit in (0, 1)]
        found.append(np.rint(116.3 * (np.array(sums[0]) - sums[1])).astype(np.int64))
    return found


def f(a: Array, b: Array) -> Array:
    """Return the log-likelihood ratio of the sum of two bits from those of the bits; ln(1 + e^-t) is approximated by powers
    of max(645 - t, 0).
    """
    low, high = np.minimum(np.abs(a), np.abs(b)), np.maximum(np.abs(a), np.abs(b))
    near, far = ((np.maximum(645 - t, 0) * 64) ** 2 >> 16 for t in (high - low, high + low))
    size = low - ((near - far) * (near + far) >> 16 >> 7)
    return np.where((a < 0) != (b < 0), -size, size)


def g(a: Array, b: Array, u: Array) -> Array:
    """Return the log-likelihood ratio of the second bit, from the ratios `a` and `b` and the known sum `u` of both bits."""
    return np.clip(b + np.where(u == 1, -a, a), -32767, 32767)


class Coder:
    """Range decoders, one per lane."""

    def __init__(self, words: Array, lanes: int) -> None:
        self.words, self.at = words, 2 * lanes
        self.code = [int(words[2 * j]) << 16 | int(words[2 * j + 1]) for j in range(lanes)]
        self.range = [2**32 - 1] * lanes

    def row(self, llrs: Array) -> Array:
        """Decode one bit of each lane."""
        bits = []
        for lane, llr in enumerate(llrs.tolist()):
            q = max(round(2**14 * float(expit(-(16 * min(abs(llr) // 16, 63) + 7.5) / 116.3))), 1)
            upper = (self.range[lane] >> 14) * q
            rest = self.range[lane] - upper
            unlikely = self.code[lane] >= rest
            self.code[lane] -= rest if unlikely else 0
            self.range[lane] = upper if unlikely else rest
            bits.append(int(unlikely) ^ int(llr < 0))
        for lane in range(llrs.size):
            if self.range[lane] < 2**16:
                self.range[lane] <<= 16
                self.code[lane] = self.code[lane] << 16 | int(self.words[self.at])
                self.at += 1
        return np.array(bits)


class Level:
    """Decoder of one level of one superblock."""

    def __init__(self, frozen: Array, flat: Array, noise: Array, raw: Array, coder: Coder | None, lanes: int) -> None:
        self.frozen, self.flat, self.noise, self.raw, self.coder, self.lanes = frozen, flat, noise, raw, coder, lanes
        self.drawn = self.filled = 0
        u = (np.arange(4096) * 1597 % 4096 + 0.5) / 4096
        self.limits = np.rint(116.3 * np.log(u / (1 - u))).astype(np.int64)

    def draw(self, llrs: Array, flat: bool) -> Array:
        """Return the frozen bits."""
        words = self.noise[self.drawn : self.drawn + len(llrs)].astype(np.int64)
        self.drawn += len(llrs)
        lane = np.arange(self.lanes)
        if flat:
            return words[:, None] >> lane & 1
        return (llrs < self.limits[((words & 4095)[:, None] + lane) % 4096]).astype(np.int64)

    def take(self, llrs: Array, flat: bool) -> Array:
        """Return the free bits."""
        if not flat:
            assert self.coder is not None
            return np.array([self.coder.row(row) for row in llrs])
        self.filled += len(llrs)
        return self.raw[self.filled - len(llrs) : self.filled]

    def node(self, s: int, llrs: Array) -> Array:
        """Return the bits of the code word from position `s` on, given their log-likelihood ratios."""
        n = len(llrs)
        frozen, flat = self.frozen[s : s + n], bool(self.flat[s : s + n].all())
        if frozen.all():
            return self.draw(llrs, flat)
        if not frozen.any():
            return self.take(llrs, flat)
        if frozen.sum() == n - 1 and not frozen[-1]:
            bits = self.draw(llrs, flat)
            total = np.zeros(self.lanes, np.int64)
            for llr, bit in zip(llrs, bits, strict=True):
                total = np.clip(total + np.where(bit == 1, -llr, llr), -32767, 32767)
            return bits ^ self.take(total[None], flat)
        half = n // 2
        left = self.node(s, f(llrs[:half], llrs[half:]))
        right = self.node(s + half, g(llrs[:half], llrs[half:], left))
        return np.concatenate([left ^ right, right])


def cut(at: int, size: int, longest: int, halves: int) -> list[tuple[int, int, int, int, int]]:
    """Return the superblocks of `size` values that begin at `at`, each as (start, stop, log2 of its block length N, lanes,
    twice its rate).
    """
    found, size = [], at + size
    for log_length in range(longest, 5, -1):
        while log_length > 10 and size - at >= 32 << log_length:
            found.append((at, at + (32 << log_length), log_length, 32, halves))
            at += 32 << log_length
        while log_length <= 10 and size - at >= 1 << log_length:
            lanes = min(32, size - at >> log_length)
            found.append((at, at + (lanes << log_length), log_length, lanes, halves))
            at += lanes << log_length
    return found + [(at, size, 6, 1, halves)] * (at < size)


def masks(halves: int, log_length: int) -> Array:
    """Return two masks over the N positions of a block, "frozen" and "flat", for each level: shape (2, levels, N)."""
    with np.load(DESIGNS / f"rate-{halves / 2:g}.npz") as stored:
        return np.unpackbits(stored[f"n{log_length}"], axis=-1, count=1 << log_length).astype(bool)


def read_polar(data: bytes) -> Array:
    """Return the values of a payload of polar."""
    (number,), shape, body = header(data)
    assert number == 21
    return read_body(body, int(np.prod(shape)))


def read_body(body: bytes, size: int) -> Array:
    """Return the `size` values of a payload's body."""
    halves, longest, order, edition, w0, w1 = struct.unpack_from("<BBBBQQ", body)
    assert edition == 1
    if order == 2:
        tail = size % 64
        end = len(body) - 4 * tail
        out = read_stream(body[20:end], cut(0, size - tail, longest, halves), (w0, w1), is_rotated=True)
        return np.concatenate([out, np.frombuffer(body, "<f4", offset=end)])
    if order == 0:
        return read_stream(body[20:], cut(0, size, longest, halves), (w0, w1))
    coded, rest = section(body[20:])
    ids = read_ans(coded, -(-size // 64), 7)
    pieces = -(-size // 65536)
    flags = np.unpackbits(np.frombuffer(rest, np.uint8, -(-pieces // 8)), bitorder="little")[:pieces]
    rest = rest[-(-pieces // 32) * 4 :]
    places, errors, rest = read_outliers(rest, size)
    blocks, at = [], 0
    for name, halves in enumerate((1, 2, 3, 4, 6, 8), start=1):
        count = 64 * int((ids == name).sum())
        blocks += cut(at, count, min(longest, 14), halves)
        at += count
    z = read_stream(rest, blocks, (w0, w1)).reshape(-1, 64)
    y = np.zeros((ids.size, 64), np.float32)
    order = [g for name in range(1, 7) for g in np.flatnonzero(ids == name)]
    y[order] = z
    out = y.reshape(-1)[:size].astype(np.float64)
    for number in np.flatnonzero(flags):
        piece = slice(65536 * number, min(65536 * (number + 1), size))
        taps = np.argsort(np.arange(piece.stop - piece.start) % 9, kind="stable")
        out[piece][taps] = out[piece].copy()
    out[places] += errors
    return out.astype(np.float32)


def read_outliers(body: bytes, size: int) -> tuple[Array, Array, bytes]:
    """Return the outliers' indices, the numbers added at these indices, and the rest of the body."""
    side, rest = section(body)
    if not side:
        return np.zeros(0, np.int64), np.zeros(0), rest
    (least,) = struct.unpack_from("<f", side)
    places = read_set(side[4:], size)
    codes = np.frombuffer(rest, np.uint8, places.size).astype(np.int64)
    assert not any(rest[places.size : -(-places.size // 4) * 4])
    grid = [least]
    for _ in range(127):
        grid.append(grid[-1] * 2**0.125)
    sizes = np.array(grid)[codes % 128] * 2**0.0625
    return places, np.where(codes >= 128, -sizes, sizes), rest[-(-places.size // 4) * 4 :]


def words_of(key: tuple[int, int], stream: int, first: int, count: int) -> Array:
    """Return at least `count` random words, in blocks of 64 calls that begin with call `first`."""
    calls = first + np.arange(64 * -(-count // 256))
    return call_words(key, stream, calls).reshape(-1, 64, 4).transpose(0, 2, 1).reshape(-1)


def turned_back(q: Array, scale: np.float32, key: tuple[int, int], first: int) -> Array:
    """Invert the rotation of the piece `q`, and return its values."""
    k = 1 << (q.size.bit_length() - 1)
    words = words_of(key, 65301, first, 2 * q.size // 32 + 1)
    signs = 1 - 2 * (words[:, None] >> np.arange(32, dtype=words.dtype) & 1).reshape(-1).astype(np.float32)
    v = q.copy()
    for start, used in ((q.size - k, signs[k : 2 * k]), (0, signs[:k]))[q.size == k :]:
        part = v[start : start + k]
        half = 1
        while half < k:
            pairs = part.reshape(-1, 2, half)
            part = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
            half *= 2
        v[start : start + k] = part * np.float32(1 / np.sqrt(k)) * used
    return (v.astype(np.float64) * float(scale)).astype(np.float32)


def read_stream(
    body: bytes, blocks: list[tuple[int, int, int, int, int]], key: tuple[int, int], is_rotated: bool = False
) -> Array:
    """Return the values of the superblocks; `body` begins with the scales."""
    counts = [-(-(stop - start) // 65536) for start, stop, *_ in blocks]
    scales = np.frombuffer(body, "<f4", sum(counts))
    cumulated = np.cumsum([0, *counts])
    own = [scales[a:b] for a, b in pairwise(cumulated)]
    raw_bits = 0
    coded = [0]
    for (*_, log_length, lanes, halves), scale in zip(blocks, own, strict=True):
        counted = [tally(*level) for level in masks(halves, log_length).transpose(1, 0, 2)]
        raw_bits += lanes * sum(raw for raw, _ in counted) * bool(scale.any())
        coded.append(lanes if scale.any() and any(rows for _, rows in counted) else 0)
    start, middle = 4 * scales.size, 4 * scales.size + -(-raw_bits // 32) * 4
    bits = np.unpackbits(np.frombuffer(body, np.uint8, middle - start, start), bitorder="little").astype(np.int64)
    words = np.frombuffer(body, "<u2", offset=middle)
    coder = Coder(words, max(coded)) if max(coded) else None
    out, at = np.zeros(blocks[-1][1] if blocks else 0, np.float32), 0
    for (first, stop, log_length, lanes, halves), scale in zip(blocks, own, strict=True):
        if not scale.any():
            continue
        levels = CHANNELS[halves][0]
        symbols = np.zeros((1 << log_length, lanes), np.int64)
        for level in range(levels):
            frozen, flat = masks(halves, log_length)[:, level]
            raw = tally(frozen, flat)[0]
            rows = bits[at : at + raw * lanes].reshape(raw, lanes)
            at += raw * lanes
            noise = words_of(key, 21 + 256 * level, first, 1 << log_length)
            decoder = Level(frozen, flat, noise, rows, coder, lanes)
            symbols += decoder.node(0, prior(halves)[level][symbols]) << level
        y = (2 * symbols - (2**levels - 1)).astype(np.float32).reshape(-1)[: stop - first]
        for start, c in zip(range(0, y.size, 65536), scale, strict=True):
            piece = y[start : start + 65536]
            out[first + start : first + start + piece.size] = (
                turned_back(piece, c, key, first + start) if is_rotated else piece * c
            )
    assert coder is None or (coder.at == words.size and max(coder.code) < 65536)
    return out


def tally(frozen: Array, flat: Array) -> tuple[int, int]:
    """Return the number of rows of a block that are stored as raw bits, and the number of rows that the range coder codes."""
    n, free = frozen.size, int((~frozen).sum())
    if free in (0, n) or (free == 1 and not frozen[-1]):
        return (free, 0) if flat.all() else (0, free)
    pairs = [tally(frozen[half], flat[half]) for half in (slice(n // 2), slice(n // 2, n))]
    return pairs[0][0] + pairs[1][0], pairs[0][1] + pairs[1][1]
