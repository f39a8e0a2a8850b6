"""Pieces of a step, each with kernels of its own, and functions that run a piece on a few values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from psnode.codecs import Codec
from psnode.codecs.arrays import Floats, Parts
from psnode.codecs.kernels.dots import inner_products
from psnode.codecs.kernels.finite import all_finite
from psnode.codecs.registry import known_codec
from psnode.codecs.rng import Key
from psnode.codecs.sinks import Added
from psnode.codecs.sources import Difference
from psnode.config import Config
from psnode.exchange.segment_coder import SegmentCoder
from psnode.exchange.shard.aggregator import get_aggregator
from psnode.exchange.update.adam import Moments, adam, in_one_pass
from psnode.exchange.update.sgd import descend, descend_beside
from psnode.feedback import Context, get_feedback
from psnode.plans.coding import Coding, SegmentCoding
from psnode.plans.groups import IDENTITY, Segment

_MOST = 1 << 20  # the most values of an array on which a piece is run
_ROW = 512  # number of values that codecs pack together
_LEAST_SCALE, _FAR_OUT, _FAR_APART = 1e-4, 32, 2048
CODED, ADDED, MOVED, READ = "gradients coded", "gradients added", "weights coded", "weights read"
UPDATED, ADAM = "weights updated", "weights updated by Adam"
PART = "kernels of the codec, part"


class Piece(NamedTuple):
    """Piece of a step: the operation `what`, one of the constants above, on segments of `shapes` with `codec`.

    `rule`: further parameters, which depend on the operation. Coding of gradients: the feedback rule. Addition of gradients:
    the feedback rule and the aggregator. Update by SGD: momentum, weight decay, True for Nesterov's form, and True if the
    master gathers weight decay with the momentum of the senders. Coding or reading of weights: True if they travel as changes.
    Part of a codec: the number of the part in Codec.kernel_parts.
    """

    what: str
    codec: str
    shapes: tuple[tuple[int, ...], ...]
    rule: tuple[Any, ...] = ()

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Self:
        """Return a piece from its `fields`, which were read from JSON."""
        what, codec, shapes, rule = fields
        return cls(what, codec, tuple(tuple(shape) for shape in shapes), tuple(rule))


def pieces_of(coding: Coding, config: Config) -> list[Piece]:
    """Return all pieces of a step. The pieces that probably take longest to compile come first."""
    segments, down, momentum = coding.plan.segments, coding.down, coding.scheme.momentum
    moved = _by_codec(segments, [known_codec(IDENTITY)] * len(segments) if down is None else down)
    coded = _by_codec(segments, coding.up)
    for codec, shapes in _by_codec(segments, [each.ups[0] for each in coding.segments]).items():
        coded.setdefault(codec, shapes)  # the codec of the warm-up, whose larger ratio may need other kernels
    found = _parts(codec for codecs in (coded, moved) for codec in codecs)
    rules = {repr(codec): repr(each.feedback) for each in coding.segments for codec in each.ups}
    found += [Piece(CODED, codec, shapes, (rules[codec],)) for codec, shapes in coded.items()]
    found += [Piece(MOVED, codec, shapes, (down is not None,)) for codec, shapes in moved.items()]
    found += [Piece(ADDED, codec, shapes, (rules[codec], coding.scheme.aggregator)) for codec, shapes in coded.items()]
    found += [Piece(READ, codec, shapes, (down is not None,)) for codec, shapes in moved.items()]
    if config.optimizer == "sgd":
        gathering = coding.gathering if config.weight_decay else None
        rule = (config.weight_decay, config.nesterov) if gathering is None else (config.weight_decay, gathering.nesterov)
        found.append(Piece(UPDATED, IDENTITY, ((2,),), (momentum, *rule, gathering is not None)))
    elif in_one_pass(config):
        found.append(Piece(ADAM, IDENTITY, ((2,),)))
    return found


def _parts(specs: Iterable[str]) -> list[Piece]:
    """Return the kernel parts of the codecs with these specs.

    Codecs of the same class share kernels, so each class occurs once.
    """
    codecs = {codec.id: codec for codec in map(known_codec, specs)}
    return [Piece(PART, repr(codec), (), (number,)) for codec in codecs.values() for number in range(len(codec.kernel_parts()))]


def _by_codec(segments: Iterable[Segment], codecs: Iterable[Codec]) -> dict[str, tuple[tuple[int, ...], ...]]:
    """Return, by codec, the shapes that `_chosen` chooses from the codec's segments."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for segment, codec in sorted(zip(segments, codecs, strict=True), key=lambda pair: (pair[1].id == IDENTITY, pair[0].size)):
        if segment.size:
            found.setdefault(repr(codec), []).append(segment.shape)
    return {codec: _chosen(shapes, known_codec(codec)) for codec, shapes in found.items()}


def _chosen(shapes: list[tuple[int, ...]], codec: Codec) -> tuple[tuple[int, ...], ...]:
    """Return up to three shapes on which a codec is run: the smallest, one that ends inside a row, and the largest.

    Arrays of different sizes may use different kernels. Shapes of more than _MOST values are avoided or, if the codec allows
    this, replaced by smaller ones.
    """
    fitting = [shape for shape in shapes if math.prod(shape) <= _MOST]
    if len(fitting) < len(shapes) and not codec.shaped:
        fitting.append((_MOST,))
    fitting = fitting or shapes[:1]
    cut = [min(shape, (_MOST - 1,), key=math.prod) for shape in shapes if math.prod(shape) % _ROW and not codec.shaped]
    return tuple(dict.fromkeys((fitting[0], *cut[:1], fitting[-1])))


def run_piece(piece: Piece) -> None:
    """Run `piece` on normally distributed values of each of its shapes.

    Unless the piece's codec is the identity, also run it on values of the last shape that resemble gradients: they have
    outliers, and their scale varies along the array.
    """
    if piece.what == PART:
        known_codec(piece.codec).kernel_parts()[piece.rule[0]]()
        return
    for shape in piece.shapes:
        values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        _RUN[piece.what](piece, values)
    if piece.codec != IDENTITY:
        scales = np.geomspace(1, _LEAST_SCALE, values.size, dtype=np.float32)
        scales[::_FAR_APART] *= _FAR_OUT
        _RUN[piece.what](piece, values * scales.reshape(values.shape))


class _Laid:
    """Gradient whose values are given in two pieces, with the methods of psnode.exchange.segment_coder.Laid."""

    def __init__(self, values: Floats) -> None:
        self._values = values.reshape(-1)

    def parts(self, start: int, stop: int) -> Parts:
        middle = (start + stop) // 2
        return [(0, self._values[start:middle]), (middle - start, self._values[middle:stop])]

    def flat(self, start: int, stop: int) -> Floats:
        return self._values[start:stop]


def _code(piece: Piece, values: Floats) -> None:
    rule, codec = get_feedback(piece.rule[0]), known_codec(piece.codec)
    coder = SegmentCoder(SegmentCoding(Segment(0, piece.codec, 0, values.shape), rule, rule, (codec,)))
    out, key = np.empty(coder.max_nbytes, np.uint8), Key.derive(0)
    all_finite(values.reshape(-1))
    gradient, payload = coder.push(_Laid(values), codec, key, out, Context(2, 1.0))
    coder.feedback.lost(gradient, coder.state, codec.decode(payload))


def _add(piece: Piece, values: Floats) -> None:
    rule, name = get_feedback(piece.rule[0]), piece.rule[1]
    codec, aggregator = known_codec(piece.codec), get_aggregator(name)
    payload, total = codec.encode(values, Key.derive(0)), np.zeros(values.size, np.float32)
    measured = codec.measure(payload, np.empty(values.size, np.float32))
    aggregator.add_measured(codec, payload, measured, total)
    if aggregator.merges and rule.merges(codec):
        aggregator.add(codec, codec.merge([payload, payload]), total)
    aggregator.finish(total, 1, Key.derive(0))
    inner_products(total, total)


def _update(piece: Piece, values: Floats) -> None:
    momentum, decay, nesterov, beside = piece.rule
    velocity, total = np.zeros(values.size if momentum or beside else 0, np.float32), values.copy()
    if beside:
        descend_beside(values, velocity, total, factor=1.0, lr=0.1, decay=decay, momentum=momentum, nesterov=nesterov)
    else:
        descend(values, velocity, total, factor=1.0, lr=0.1, momentum=momentum, weight_decay=decay, nesterov=nesterov)


def _adam(piece: Piece, values: Floats) -> None:
    mean, square, total = (np.zeros_like(values) for _ in range(3))
    adam(values, mean, square, total, Moments(0.9, 0.999, 1e-8, 0.0, True), factor=1.0, lr=0.1, count=1)


def _move(piece: Piece, values: Floats) -> None:
    codec = known_codec(piece.codec)
    if piece.rule[0]:
        y = np.zeros_like(values)
        codec.encode(Difference(values, y, np.empty(values.size, np.float32)), Key.derive(0), sink=Added(y))
    else:
        codec.encode(values.reshape(-1), Key.derive(0))


def _read(piece: Piece, values: Floats) -> None:
    codec = known_codec(piece.codec)
    payload = codec.encode(values, Key.derive(0))
    if piece.rule[0]:
        codec.decode_add(payload, values)
    else:
        codec.decode(payload, out=values)


_RUN: Mapping[str, Callable[[Piece, Floats], None]] = MappingProxyType(
    {CODED: _code, ADDED: _add, UPDATED: _update, ADAM: _adam, MOVED: _move, READ: _read}
)
