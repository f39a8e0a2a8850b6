"""Polar: multilevel polar source coding with shaping. Its error is within tenths of a decibel of the least possible at its rate.

A value decodes to a scale times one of the points a_k = 2 k - (M - 1), where M = 2^levels. The bits of k are coded level by
level, in blocks of N values. The N bits b of a level are u G, where G is the polar transform. The bits u_i are chosen in order,
each given the bits before it. The prior is the distribution of the decoded values of a Gaussian source. If the values say
little about u_i, this bit is frozen: it is drawn at random with its probability under the prior, from a seed known to both
sides, and is not sent. Otherwise u_i is the bit that is likelier given the values, and it is arithmetic-coded with its prior.
At a rate of R bits per value the error approaches the rate-distortion function D = 4^-R as N grows; see docs/results.

Encoder and decoder compute the priors in the same integer arithmetic, so that they agree on every machine. Every 2^16
neighbours share a scale and are treated as Gaussian. Unless values are rotated, the scale that is sent is the one with the
least squared error, so that ||x - decode|| <= ||x||. If the root mean square of the values that share a scale is below 2^-100,
they become zeros.

With `prior=empirical` groups of 64 neighbours are first sorted by energy and coded at rates between 0 and 4, if this gains
enough (polarcodes.energy_groups).

With `rotate=true` the values that share a scale are rotated at random, and the scale is chosen so that the decoded vector has
no error in the direction of x (polarcodes.hadamard). An error of alpha ||x||^2 thus becomes alpha / (1 - alpha) ||x||^2. The
mean of the decoded vector is then x, except for vectors in which a few non-zero values outweigh all others: the decoded values
of these few differ from each other by some hundredths too little. Therefore the codec does not have the trait `unbiased`.

    body   uint8 rate in halves of a bit: 1, 2, 3, 4, 6 or 8; uint8 log2 of the longest block; uint8 1 if groups are sorted, 2 if
           values are rotated, or 0; uint8 edition of the designs; two uint64 key words
           if sorted: uint32 length, then the classes of the groups as ans codes them, zeros to a multiple of 4 bytes; a bit for
           every 2^16 values, 1 if they are in the order of taps, zeros to a multiple of 4 bytes; polarcodes.outliers
           float32 scale of every 2^16 values, see polarcodes.superblocks
           raw bits in uint32, superblock by superblock and level by level, then uint16 words of polarcodes.range_coder; nothing
           for superblocks whose scales are 0
           if rotated: float32, the last d mod 64 values

Source: Arikan, "Channel polarization", IEEE Trans. IT 2009; Korada, Urbanke, "Polar codes are optimal for lossy source
coding", IEEE Trans. IT 2010; Honda, Yamamoto, "Polar coding without alphabet extension for asymmetric models", ibid. 2013.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codec, Floats, Shape, Sink, Source, Words, readonly
from psnode.codecs.bounds import check_choice
from psnode.codecs.entropy.ans import Ans
from psnode.codecs.kernels.finite import add_scaled, raise_nonfinite
from psnode.codecs.kernels.root_mean_square import root_mean_square
from psnode.codecs.polarcodes import body as bytes_of
from psnode.codecs.polarcodes import designs, energy_groups, group_order, kernel_parts, outliers, stream
from psnode.codecs.polarcodes.superblocks import SCALED, superblocks
from psnode.codecs.polarcodes.vectors import LANES
from psnode.codecs.sinks import Moved
from psnode.codecs.stages import FlatCodec, padded
from psnode.errors import CodecSpecError, PayloadError

_FIELDS = 20
_SMALLEST = 2.0**-100  # groups are sorted only if the root mean square of the array is at least this
_LEAST_SORTED = 1024
_BLOCKS = tuple(1 << log_length for log_length in range(10, 19, 2))
_TAIL = 64  # rows shorter than this are not rotated
_PRIORS = ("auto", "empirical", "gaussian")


@dataclass(frozen=True, repr=False)
class Polar(FlatCodec):
    """polar:rate=1,block=16384,rotate=false,prior=auto.

    `rate`: bits per coordinate: 0.5, 1, 1.5, 2, 3 or 4. `block`: N, the largest block length: 2^10, 2^12, 2^14, 2^16 or 2^18.
    32 blocks are coded in parallel, so that arrays shorter than 32 N have shorter blocks. `rotate`: rotate at random, which
    makes the codec nearly unbiased if many values are not zero. `prior`: `empirical` determines a variance for every 64 values
    of each array, and has the least error on gradients. `gaussian` has one variance for 2^16 values. `auto` is `gaussian` with
    rotation, else `empirical`.

    At one bit per coordinate the error is near the least possible for a Gaussian source, 1/4:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("polar:prior=gaussian"), np.random.default_rng(1).standard_normal(1 << 15, np.float32)
    >>> error = x - codec.decode(codec.encode(x, np.random.default_rng(1)))
    >>> bool(0.25 < np.sum(error**2) / np.sum(x**2) < 0.3)
    True
    """

    rate: float = 1.0
    block: int = 16384
    rotate: bool = False
    prior: str = "auto"

    id = "polar"

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        if self.rate not in designs.RATES or isinstance(self.rate, bool):
            raise CodecSpecError(f"polar: rate={self.rate} must be one of {', '.join(f'{rate:g}' for rate in designs.RATES)}")
        object.__setattr__(self, "rate", float(self.rate))
        if self.block not in _BLOCKS:
            raise CodecSpecError(f"polar: block={self.block} must be one of {', '.join(map(str, _BLOCKS))}")
        check_choice(self, "prior", _PRIORS)
        if self.rotate and self.prior == "empirical":
            raise CodecSpecError(
                "polar: prior=empirical is of no use with rotate=true, what is rotated is Gaussian: leave one out"
            )

    def contractive(self) -> Codec:
        """Return this codec without rotation."""
        return replace(self, rotate=False)

    def kernel_parts(self) -> Sequence[Callable[[], None]]:
        """Return functions that run one part of the kernels each, ordered by their time of compilation, the longest first."""
        return kernel_parts.classes, kernel_parts.writing, kernel_parts.reading, kernel_parts.corrections

    @property
    def _longest(self) -> int:
        return self.block.bit_length() - 1

    @property
    def _sorts(self) -> bool:
        return not self.rotate and self.prior != "gaussian"

    def _max_body(self, shape: Shape) -> int:
        size = math.prod(shape)
        blocks = list(superblocks(size, self._longest, self.rate))
        found = stream.extent(blocks, [True] * len(blocks))
        plain = 4 * sum(block.scales for block in blocks) + 4 * -(-found.raw // 32) + 2 * stream.allowed_words(found)
        return _FIELDS + max(plain + 4 * (_TAIL - 1) * self.rotate, self._max_sorted(size))

    def _max_sorted(self, size: int) -> int:
        """Return the largest number of bytes after the fields if groups are sorted, else 0.

        A class exceeds its rate by up to _excess.
        """
        if not self._sorts or not _LEAST_SORTED <= size <= outliers.MOST:
            return 0
        count = -(-size // group_order.GROUP)
        ids = 4 + padded(Ans().max_nbytes(count, len(energy_groups.LADDER)))
        scales = size // SCALED + size // (LANES * min(self.block, 1 << energy_groups.LONGEST)) + len(energy_groups.LADDER) * 16
        bits = math.ceil((self.rate + _excess(min(self._longest, energy_groups.LONGEST))) * count * group_order.GROUP)
        rest = stream.Extent(0, bits, LANES)
        return (
            outliers.max_nbytes(size)
            + ids
            + padded(-(-size // (8 * group_order.CHUNK)))
            + 4 * scales
            + 2 * stream.allowed_words(rest)
            + 8
        )

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        x = source.array()
        flat = x.reshape(-1)
        found = self._sorted(flat)
        body[:4] = round(2 * self.rate), self._longest, 2 if self.rotate else found is not None, designs.EDITION
        body[4:_FIELDS].view(np.uint32)[:] = key.view(np.uint32)
        if found is not None:
            return _FIELDS + self._write_sorted(flat, found, key, body[_FIELDS:], sink)
        size = flat.size - flat.size % _TAIL * self.rotate
        blocks = list(superblocks(size, self._longest, self.rate))
        decoded = np.zeros(flat.size if isinstance(sink, Moved) else 0, np.float32)
        coded = bytes_of.code(flat[:size], blocks, self.rotate, key, decoded, capped=False)
        if coded is None or not np.isfinite(flat[size:]).all():
            raise_nonfinite(x)
        assert coded is not None
        used = coded.put(body[_FIELDS:])
        end = _FIELDS + used + 4 * (flat.size - size)
        body[_FIELDS + used : end] = flat[size:].view(np.uint8)
        _move(decoded, sink)
        return end

    def _fuses(self, source: Source, sink: Sink) -> bool:
        """Return True for the sink NOTHING and, without rotation, for sinks that move a target.

        Without rotation, encoding also yields the decoded values.
        """
        return sink is NOTHING or (isinstance(sink, Moved) and not self.rotate)

    def _write_sorted(self, x: Floats, found: energy_groups.Arranged, key: Words, body: Bytes, sink: Sink) -> int:
        """Write classes, outliers and the coded stream to `body`. Return the number of bytes."""
        z, y = np.zeros_like(found.values), np.empty_like(x)
        blocks = bytes_of.class_blocks(found.classes.ids, self._longest)
        coded = bytes_of.code(found.values, blocks, False, key, z, capped=True)
        assert coded is not None
        energy_groups.restore(z, found.classes, y)
        start = bytes_of.write_classes(found.classes, body)
        used = outliers.write(x, y, found.multiplier, body[start:])
        if isinstance(sink, Moved):
            places, errors, _ = outliers.read(body[start : start + used], x.size)
            outliers.add(places, errors, y)
            _move(y, sink)
        return start + used + coded.put(body[start + used :])

    def _sorted(self, x: Floats) -> energy_groups.Arranged | None:
        """Return the values of `x` sorted by energy, or None if sorting is disabled, is not possible, or gains little."""
        if not self._sorts or not _LEAST_SORTED <= x.size <= outliers.MOST:
            return None
        size = root_mean_square(x)
        return energy_groups.arrange(x, size * size, self.rate) if size >= _SMALLEST else None

    def _decode(self, body: Bytes, out: Floats) -> None:
        rate, longest, is_sorted, is_rotated = _fields(body)
        key = readonly(body[4:_FIELDS].copy().view(np.uint64))
        flat = out.reshape(-1)
        if is_sorted:
            classes, rest = bytes_of.read_classes(body[_FIELDS:], flat.size)
            places, errors, rest = outliers.read(rest, flat.size)
            values = np.empty(sum(energy_groups.sizes(classes.ids)), np.float32)
            bytes_of.read(rest, bytes_of.class_blocks(classes.ids, longest), False, key, values)
            energy_groups.restore(values, classes, flat)
            outliers.add(places, errors, flat)
            return
        tail = flat.size % _TAIL * is_rotated
        size, end = flat.size - tail, body.size - 4 * tail
        if end < _FIELDS:
            raise PayloadError(f"polar: {body.size} bytes end inside the last {tail} values")
        bytes_of.read(body[_FIELDS:end], list(superblocks(size, longest, rate)), is_rotated, key, flat[:size])
        flat[size:].view(np.uint8)[:] = body[end:]
        if not np.isfinite(flat[size:]).all():
            raise PayloadError(f"polar: one of the last {tail} values is not finite")


def _move(decoded: Floats, sink: Sink) -> None:
    """Add the decoded values, times the sink's weight, to the sink's target if `sink` is Moved."""
    if isinstance(sink, Moved):
        add_scaled(decoded, sink.target.reshape(-1), np.float32(sink.weight))


@cache
def _excess(longest: int) -> float:
    """Return the largest number of bits per value by which a class may exceed its rate, if every coded bit costs one bit."""
    return max(
        float((~designs.load(rate, log_length).frozen).sum()) / (1 << log_length) - rate
        for rate in designs.RATES
        for log_length in range(designs.LENGTHS[0], longest + 1)
    )


def _fields(body: Bytes) -> tuple[float, int, bool, bool]:
    """Return the rate, log2 of the longest block, and two flags: whether groups are sorted, and whether values are rotated.

    Raises PayloadError.
    """
    if body.size < _FIELDS:
        raise PayloadError(f"polar: a body of {body.size} bytes ends inside its fields")
    halves, longest, kind, edition = body[:4].tolist()
    if edition != designs.EDITION:
        raise PayloadError(f"polar: edition {edition} of the designs, not {designs.EDITION}: run one version on all hosts")
    if halves / 2 not in designs.RATES or 1 << min(longest, 32) not in _BLOCKS or kind > 2:
        raise PayloadError(f"polar: rate {halves / 2:g}, blocks of 2^{longest} or kind {kind} are not known")
    return halves / 2, longest, kind == 1, kind == 2
