"""Chains of stages, `[reducer +] quantiser [+ lossless]`: `topk:ratio=0.01+qsgd:levels=7+ans`, `svd+qsgd`, `qsgd+zstd`.

    body of a chain         if there is a reducer: a section with the reducer's side information; always: the coded values
    coded values            without a lossless stage: the quantiser's body
                            with a lossless stage: a section with the quantiser's side information, then the compressed symbols
                            empty if there are no values
    section                 uint32 length, the bytes, zeros to a multiple of 4

A chain is unbiased if its reducer and its quantiser are unbiased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from psnode.codecs import table
from psnode.codecs.base import (
    NOTHING,
    Bytes,
    Codec,
    Floats,
    Indices,
    Measured,
    RandomSource,
    Shape,
    Sink,
    Source,
    Words,
    readonly,
)
from psnode.codecs.contractive import Contractive
from psnode.codecs.selection.searching_reducer import Searching
from psnode.codecs.sinks import InnerProducts, Moved
from psnode.codecs.sources import Values
from psnode.codecs.spec import Spec, Stage, construct, unknown
from psnode.codecs.stages import (
    FlatCodec,
    Lossless,
    Quantiser,
    Reducer,
    check_finite,
    codes_like,
    padded,
    read_section,
    write_section,
)
from psnode.codecs.traits import Traits
from psnode.errors import CodecSpecError, PayloadError

if TYPE_CHECKING:
    from psnode.codecs.selection.largest import Entries


def build_chain(stages: Sequence[Stage]) -> Codec:
    """Return the chain of two or three parsed stages. Raises CodecSpecError."""
    built = [_build(stage) for stage in stages]
    first, last = built[0], built[-1]
    reducer = first if isinstance(first, Reducer) else None
    lossless = last if isinstance(last, Lossless) else None
    middle = built[reducer is not None : len(built) - (lossless is not None)]
    text = "+".join(stage.id for stage in stages)
    if len(middle) != 1 or not isinstance(middle[0], FlatCodec):
        raise CodecSpecError(f"{text} is no chain: write [selector or svd +] quantiser [+ lossless stage]")
    if lossless is not None and not isinstance(middle[0], Quantiser):
        raise CodecSpecError(f"{text} is no chain: {middle[0].id} is entropy coded already, leave {lossless.id} out")
    return Chain(reducer, middle[0], lossless)


def _build(stage: Stage) -> object:
    if stage.id not in table.LOSSLESS and not table.is_known(stage.id):
        raise unknown("stage", stage.id, [*table.codecs(), *table.LOSSLESS])
    built: object = construct(table.load(stage.id), stage)
    return built


@dataclass(frozen=True, repr=False)
class Chain(Codec):
    """A quantiser with a reducer before it, a lossless stage after it, or both.

    In this example, the two largest entries are sent in 16 bits each:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("topk:ratio=0.5+bf16"), np.array([1, -4, 2, 0.5], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [0.0, -4.0, 2.0, 0.0]
    """

    reducer: Reducer | None
    quantiser: FlatCodec
    lossless_stage: Lossless | None

    id = "chain"

    @property
    def _symbolic(self) -> Quantiser:
        """The quantiser, which is always a Quantiser if a lossless stage follows it."""
        assert isinstance(self.quantiser, Quantiser)
        return self.quantiser

    @property
    def traits(self) -> Traits:
        """The combined traits of reducer and quantiser. `one_scale` is never set in a chain with a reducer."""
        last = self.quantiser.traits
        first = Traits(unbiased=True, lossless=True) if self.reducer is None else self.reducer.traits
        return Traits(
            unbiased=first.unbiased and last.unbiased,
            lossless=first.lossless and last.lossless,
            shaped=first.shaped,
            one_scale=self.reducer is None and last.one_scale,
            sparse=first.sparse,
            adaptive=first.adaptive or last.adaptive,
            refit=last.refit,
        )

    @property
    def _parts(self) -> tuple[Codec | Lossless, ...]:
        """The chain's stages, in order: reducer, quantiser and lossless stage, without the absent ones."""
        return tuple(stage for stage in (self.reducer, self.quantiser, self.lossless_stage) if stage is not None)

    @property
    def spec(self) -> Spec:
        """The specs of the stages, in order."""
        return Spec(False, tuple(Stage.of(stage.id, stage) for stage in self._parts))

    @property
    def stages(self) -> tuple[str, ...]:
        """The ids of the stages, in order."""
        return tuple(stage.id for stage in self._parts)

    def contractive(self) -> Codec:
        """Return the chain of the contractive forms of its reducer and quantiser.

        If one of these forms cannot be part of a chain, the chain is wrapped in Contractive.
        """
        reducer = self.reducer
        if reducer is not None:
            form = reducer.contractive()
            if not isinstance(form, Reducer):
                return Contractive(self)
            reducer = form
        quantiser = self.quantiser.contractive()
        if isinstance(quantiser, FlatCodec):
            return Chain(reducer, quantiser, self.lossless_stage)
        return Contractive(Chain(reducer, self.quantiser, self.lossless_stage))

    def fit(self, x: Floats, rng: RandomSource) -> Chain:
        """Return the chain with its quantiser fitted to the values that it would receive when the chain encodes `x`."""
        values = np.asarray(x, order="C")
        if self.reducer is not None:
            side = np.empty(padded(self.reducer._max_parts(x.shape)[0]), np.uint8)
            key = np.asarray(rng.integers(2**64, size=2, dtype=np.uint64))
            values = self.reducer._reduce(readonly(values), key, side)[1]
        return replace(self, quantiser=self.quantiser.fit(values.reshape(-1), rng))

    def _max_body(self, shape: Shape) -> int:
        if self.reducer is None:
            return self._max_coded(int(np.prod(shape, dtype=np.int64)))
        side, values = self.reducer._max_parts(shape)
        return 4 + padded(side) + self._max_coded(values)

    def _max_coded(self, count: int) -> int:
        if not count:
            return 0
        if self.lossless_stage is None:
            return self.quantiser._max_body((count,))
        side, codes, alphabet = self._symbolic._max_symbols(count)
        return 4 + padded(side) + self.lossless_stage.max_nbytes(codes, alphabet)

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return sink is NOTHING or (isinstance(sink, Moved) and isinstance(self.reducer, Searching))

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        if isinstance(self.reducer, Searching):
            return self._search(self.reducer, source, key, body, sink)
        x = source.array()
        if self.reducer is None:
            return self._encode_values(x.reshape(-1), key, body)
        used, values = self.reducer._reduce(x, key, body[4 : 4 + self.reducer._max_parts(x.shape)[0]])
        return self.joined(used, values, key, body)

    def joined(self, used: int, values: Floats, key: Words, body: Bytes) -> int:
        """Complete a body whose side information, `used` bytes of the reducer, is already in body[4:]. Return its length."""
        start = write_section(body, used)
        return start + self._encode_values(readonly(np.ascontiguousarray(values)), key, body[start:])

    def parted(self, body: Bytes, shape: Shape) -> tuple[Bytes, Floats]:
        """Return the reducer's side information, checked, and the values that the quantiser decodes. Raises PayloadError."""
        side, count, coded = self._split(body, shape)
        return side, self._kept(coded, count)

    def _search(self, selector: Searching, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        """Select values of `source`, encode them, and serve `sink` with the values that the quantiser decodes.

        Return the body's length.
        """
        from psnode.codecs.kernels.entries import add_at

        used, entries = selector.select(source, key, body[4 : 4 + selector._max_parts(source.shape)[0]])
        start = write_section(body, used)
        end = start + self._encode_values(readonly(entries.values), key, body[start:])
        if isinstance(sink, Moved):
            decoded = self._kept(readonly(body[start:end]), entries.values.size)
            add_at(sink.target.reshape(-1), entries.indices, decoded, np.float32(sink.weight))
        return end

    def _apply(self, sink: Sink, source: Source, body: Bytes) -> None:
        """Decode `body` and serve `sink` with the decoded values.

        For a sparse chain, inner products are computed only from the entries sent, because all other decoded values are zero.
        """
        if not isinstance(sink, InnerProducts) or not self.sparse or self.reducer is None:
            super()._apply(sink, source, body)
            return
        from psnode.codecs.kernels.dots import tree_products

        side, count, coded = self._split(body, source.shape)
        values = np.empty(count, np.float32)
        self._decode_values(coded, values)
        sink.record(*tree_products(source.array().reshape(-1)[self.reducer._support_of(side, source.shape)], values))

    def _encode_values(self, values: Floats, key: Words, body: Bytes) -> int:
        if not values.size:
            return 0
        if self.lossless_stage is None:
            return self.quantiser._encode(Values(values), key, body, NOTHING)
        side, codes, alphabet = self._symbolic._symbols(values, key)
        body[4 : 4 + side.size] = side
        start = write_section(body, side.size)
        return start + self.lossless_stage.compress(codes, alphabet, body[start:])

    def _split(self, body: Bytes, shape: Shape) -> tuple[Bytes, int, Bytes]:
        """Return side information, number of values, and coded values of the body of a chain with a reducer.

        Raises PayloadError.
        """
        assert self.reducer is not None
        side, coded = read_section(body)
        count = self.reducer._count(side, shape)
        if not count and coded.size:
            raise PayloadError(f"{self.reducer.id}: {coded.size} bytes follow although no values were kept")
        return side, count, coded

    def _decode_values(self, coded: Bytes, out: Floats) -> None:
        if not out.size:
            return
        if self.lossless_stage is None:
            self.quantiser._decode(coded, out)
            return
        side, data = read_section(coded)
        count, alphabet = self._symbolic._read_side(side, out.size)
        codes = codes_like(count, alphabet)
        self.lossless_stage.expand(data, codes, alphabet)
        self._symbolic._from_symbols(side, codes, out)

    def _kept(self, coded: Bytes, count: int) -> Floats:
        """Return the `count` values that the reducer kept, decoded. Raises PayloadError unless they are valid and finite."""
        values = np.empty(count, np.float32)
        self._decode_values(coded, values)
        check_finite(values, self.quantiser.id)
        return readonly(values)

    def _decode(self, body: Bytes, out: Floats) -> None:
        if self.reducer is None:
            self._decode_values(body, out.reshape(-1))
            return
        self.reducer._expand(*self.parted(body, out.shape), out)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        if self.reducer is None:
            if self.lossless_stage is None:
                self.quantiser._decode_add(body, out.reshape(-1), weight)
            else:
                super()._decode_add(body, out, weight)
            return
        self.reducer._expand_add(*self.parted(body, out.shape), out, weight)

    def _measure(self, body: Bytes, shape: Shape, room: Floats | None) -> Measured:
        if self.reducer is not None:
            found = self.reducer._measure_parts(*self.parted(body, shape), shape)
            return found or super()._measure(body, shape, room)
        if self.lossless_stage is not None:
            return super()._measure(body, shape, room)
        found = self.quantiser._measure(body, (int(np.prod(shape, dtype=np.int64)),), room)
        return Measured(found.norm, lambda out, weight: found.add(out.reshape(-1), weight))

    def _entries(self, body: Bytes, shape: Shape) -> Entries | None:
        if not isinstance(self.reducer, Searching):
            return None
        return self.reducer._at(*self.parted(body, shape), shape)

    def _support(self, body: Bytes, shape: Shape) -> Indices:
        if self.reducer is None:
            return super()._support(body, shape)
        return self.reducer._support_of(self._split(body, shape)[0], shape)
