"""Choice, writing and reading of the sections of ans. A section is a stretch of codes with one table.

    offset  bytes  field          little-endian
         0      1  kind           1 for pairs of successive codes, 0 for single codes; + 2 if there is an escape symbol
         1      4  number of codes
         5      2  table bytes t
         7      t  weight bytes: of the escape symbol, if there is one; then of codes 0, 1, ...; a zero byte and a
                   byte r stand for r symbols without a weight

A section with only one symbol takes only these bytes. The weight of a pair is the product of its codes' frequencies.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from psnode.codecs.arrays import Bytes, Codes, Int64s
from psnode.codecs.entropy import ans_model as model
from psnode.codecs.entropy.ans_model import MAX_SYMBOLS, TOP_BYTE
from psnode.errors import PayloadError

MAX_SECTIONS = 65
_SHORTEST = 4096
_PAIRS_FROM = 1 << 14  # codes in a section; with fewer, a table of pairs would cost more time than it saves
_PAIRS_LOSS = 10  # pairs are used if they are longer than single codes by at most a share of 2^-10
_RARE = (14, 12)  # a code has a table entry if its share exceeds 2^-14, or 2^-12 if too many codes exceed 2^-14
_HEAD = 7


class Section(NamedTuple):
    """A section of `size` codes, with its table.

    `symbols` are the explicit codes, which are those with a table entry, ascending. `freqs` are the frequencies. If `escape` is
    True, freqs[0] is the frequency of the escape symbol. `table` holds the weight bytes as they are sent.
    """

    size: int
    pairs: bool
    escape: bool
    symbols: Int64s
    freqs: Int64s
    table: bytes

    @property
    def is_constant(self) -> bool:
        """True if there is only one symbol, so that no words are needed."""
        return self.freqs.size == 1

    def max_escaped(self, alphabet: int) -> int:
        """Return the largest possible number of codes that are too rare for a table entry."""
        return min(self.size, self.size * alphabet >> _RARE[1])

    def lut(self, alphabet: int) -> Int64s:
        """Return the index in `freqs` of every code.

        For a code without a table entry this is 0, the index of the escape symbol.
        """
        lut = np.zeros(alphabet, np.int64)
        lut[self.symbols] = np.arange(self.symbols.size) + self.escape
        return lut

    def pair_freqs(self) -> Int64s:
        """Return the frequencies of all pairs of symbols. The pair (a, b) has index m a + b, for m symbols."""
        weights = np.empty(self.freqs.size**2, np.int64)
        model.pair_weights(self.freqs, weights)
        return _frequencies(weights)

    def to_bytes(self) -> bytes:
        """Return the section's bytes, in the format that the module's docstring describes."""
        head = bytes([self.pairs + 2 * self.escape]) + self.size.to_bytes(4, "little")
        return head + len(self.table).to_bytes(2, "little") + self.table

    @classmethod
    def of(cls, counts: Int64s) -> Self:
        """Return the section for codes that occur `counts` times."""
        total = int(counts.sum())
        explicit = counts << _RARE[0] > total
        if np.count_nonzero(explicit) >= MAX_SYMBOLS:
            explicit = counts << _RARE[1] > total
        rare = total - int(counts[explicit].sum())
        dense = np.where(explicit, counts, 0)[: int(np.flatnonzero(explicit).max(initial=-1)) + 1]
        coded = np.concatenate([[rare], dense]) if rare else dense
        weights = np.empty(coded.size, np.uint8)
        model.weight_bytes(coded, weights)
        section = cls._with(total, rare > 0, weights, _pack_zeros(weights))
        return section._replace(pairs=counts.size <= 256 and section._prefers_pairs(coded[weights > 0]))

    @classmethod
    def _with(cls, count: int, escape: bool, weights: Bytes, table: bytes) -> Self:
        expanded = np.empty(weights.size, np.int64)
        model.weights_of(weights, expanded)
        return cls(count, False, escape, np.flatnonzero(weights[escape:]), _frequencies(expanded[weights > 0]), table)

    def _prefers_pairs(self, counts: Int64s) -> bool:
        if self.size < _PAIRS_FROM or self.size % 2 or not 1 < self.freqs.size**2 <= MAX_SYMBOLS:
            return False
        single = model.coded_cost(counts, self.freqs)
        return bool(model.pair_cost(counts, self.pair_freqs()) <= single + (single >> _PAIRS_LOSS))

    @classmethod
    def read(cls, data: Bytes, start: int, alphabet: int) -> tuple[Self, int]:
        """Return the section at the start of `data` and its length in bytes. `start` is the index of its first code.

        Raises PayloadError.
        """
        if data.size < _HEAD:
            raise PayloadError("ans: the tables end inside a section")
        kind, count = int(data[0]), int.from_bytes(data[1:5], "little")
        end = _HEAD + int.from_bytes(data[5:_HEAD], "little")
        pairs, escape = kind & 1 == 1, kind & 2 == 2
        weights = _unpack_zeros(data[_HEAD:end], alphabet + escape)
        used = int(np.count_nonzero(weights))
        if kind > 3 or not count or end > data.size or not 1 <= used <= MAX_SYMBOLS:
            raise PayloadError(f"ans: a section of kind {kind}, {count} codes, {used} symbols, {end} of {data.size} bytes")
        if pairs and (count % 2 or start % 2 or used**2 > MAX_SYMBOLS or alphabet > 256):
            raise PayloadError(f"ans: {count} codes from {start} on with {used} symbols cannot be a section of pairs")
        if escape and (not weights[0] or used > alphabet):
            raise PayloadError(f"ans: {used} symbols, the escape among them, for an alphabet of {alphabet}")
        return cls._with(count, escape, weights, data[_HEAD:end].tobytes())._replace(pairs=pairs), end


def _frequencies(weights: Int64s) -> Int64s:
    freqs = np.empty_like(weights)
    model.frequencies(weights, freqs)
    return freqs


def _pack_zeros(weights: Bytes) -> bytes:
    """Return the weight bytes with each run of zeros replaced by a zero byte and the length of the run."""
    out = bytearray()
    start = 0
    for at in [*np.flatnonzero(weights).tolist(), weights.size]:
        for run in range(start, at, 255):
            out += bytes([0, min(255, at - run)])
        out += weights[at : at + 1].tobytes()
        start = at + 1
    return bytes(out)


def _unpack_zeros(data: Bytes, limit: int) -> Bytes:
    """Return the weight bytes, at most `limit`, from which _pack_zeros made `data`. Raises PayloadError."""
    weights = np.zeros(limit + 1, np.uint8)
    at = 0
    in_run = False
    for byte in data.tolist():
        if in_run:
            at += byte
        elif byte:
            weights[min(at, limit)] = byte
            at += 1
        in_run = not in_run and not byte
    if in_run or at > limit or int(weights.max(initial=0)) > TOP_BYTE:
        raise PayloadError("ans: a table has weights that are too large or too many")
    return weights[:at]


def choose_sections(codes: Codes, alphabet: int) -> list[Section]:
    """Return the sections of `codes`. Successive pieces are joined if one common table costs no more than two tables."""
    odd = codes.size > _PAIRS_FROM and codes.size % 2
    body = codes[: codes.size - odd]
    pieces = min(MAX_SECTIONS - 1, max(1, body.size // _SHORTEST)) if alphabet <= 256 else 1
    length = -(-body.size // (16 * pieces)) * 16
    joined: list[Int64s] = []
    for start in range(0, body.size, length):
        counts = _counts(body[start : start + length], alphabet)
        if joined:
            together = joined[-1] + counts
            if model.section_cost(together) <= model.section_cost(joined[-1]) + model.section_cost(counts):
                joined[-1] = together
                continue
        joined.append(counts)
    if odd:
        joined.append(_counts(codes[-1:], alphabet))
    return [Section.of(counts) for counts in joined]


def _counts(codes: Codes, alphabet: int) -> Int64s:
    counts = np.zeros(alphabet, np.int64)
    model.histogram(codes, counts)
    return counts


def read_sections(data: Bytes, count: int, alphabet: int) -> tuple[list[Section], Bytes]:
    """Return the sections of `count` codes at the start of `data`, and the remaining bytes. Raises PayloadError."""
    sections: list[Section] = []
    start = 0
    while start < count and len(sections) < MAX_SECTIONS:
        section, used = Section.read(data, start, alphabet)
        sections.append(section)
        start += section.size
        data = data[used:]
    if start != count:
        raise PayloadError(f"ans: the sections have {start} codes instead of {count}")
    return sections, data
