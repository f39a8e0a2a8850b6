"""Mutations of valid payloads: each gives PayloadError or an array of the declared shape.

A payload has no checksum, and most mutations leave its header valid and its lengths right or nearly right. A decoder may raise no
other exception, and may allocate only a multiple of the declared shape. If decode_add raises PayloadError, it must not have
changed its output.
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from psnode.codecs import Codec, Payload, get_codec
from psnode.codecs.payload import header_nbytes
from psnode.codecs.rng import Key
from psnode.errors import PayloadError
from tests.codecs.family import forms, gaussian

MUTATIONS = 1500
LARGEST = 1 << 16  # decode at most this many coordinates: more only take longer


@pytest.fixture(params=[*forms(), "contractive(qsgd)", "contractive(svd)"], scope="module")
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """Apply one to four changes: a byte, a bit, a field, a cut, an insertion, a repetition, or the dimensions."""
    changed = bytearray(data)
    start = header_nbytes(data[2])
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(start, max(len(changed), start + 1)))
        kind = rng.integers(8)
        if kind == 0 and len(changed) > at:
            changed[at] = rng.integers(256)
        elif kind == 1 and len(changed) > at:
            changed[at] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            at -= at % 4
            changed[at : at + 4] = int(rng.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800000, 0x80000000])).to_bytes(4, "little")
        elif kind == 3:
            del changed[at : at + int(rng.integers(1, 9))]
        elif kind == 4:
            changed[at:at] = rng.bytes(int(rng.integers(1, 9)))
        elif kind == 5:
            changed[at:at] = changed[at : at + 16]
        elif kind == 6 and start > 8:
            where = 8 + 4 * int(rng.integers((start - 8) // 4))
            changed[where : where + 4] = int(rng.integers(0, 300)).to_bytes(4, "little")
        elif kind == 7:
            at = start + 4 * int(rng.integers(4))
            changed[at : at + 2] = int(rng.integers(1 << 16)).to_bytes(2, "little")
    return bytes(changed)


def test_mutations_of_the_body_end_in_an_error_or_an_array(codec: Codec) -> None:
    rng = np.random.default_rng(1)
    seeds = [codec.encode(gaussian(*shape), Key.derive(3)).to_bytes() for shape in ((20, 33), (600,), (3,), (9, 4, 3, 3))]
    untouched = gaussian(LARGEST)
    decoded = 0
    for number in range(MUTATIONS):
        data = mutate(seeds[number % len(seeds)], rng)
        try:
            payload = Payload.from_bytes(data)
        except PayloadError:
            continue
        if payload.size > LARGEST:
            continue
        sums = untouched[: payload.size].copy()
        try:
            codec.decode_add(payload, sums)
        except PayloadError:
            assert np.array_equal(sums, untouched[: payload.size])
            with pytest.raises(PayloadError):
                codec.decode(payload)
            continue
        with np.errstate(all="ignore"):
            values = codec.decode(payload)
        assert (values.shape, values.dtype) == (payload.shape, np.float32)
        support = codec.support(payload)
        assert support.size == 0 or 0 <= support.min() <= support.max() < payload.size
        decoded += 1
    assert decoded or codec.sparse  # some changes affect only values, which shows that mutations reach the decoder


def test_every_truncation_is_refused(codec: Codec) -> None:
    data = codec.encode(gaussian(20, 33), Key.derive(3)).to_bytes()
    for length in range(0, len(data), max(1, len(data) // 200)):
        with pytest.raises(PayloadError):
            codec.decode(Payload.from_bytes(data[:length]))
    with pytest.raises(PayloadError):
        codec.decode(Payload.from_bytes(data + bytes(4)))


def test_decoding_allocates_no_more_than_the_declared_shape(codec: Codec) -> None:
    rng = np.random.default_rng(2)
    data = codec.encode(gaussian(20, 33), Key.derive(3)).to_bytes()
    codec.decode(Payload.from_bytes(data))
    tracemalloc.start()
    try:
        for _ in range(100):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                payload = Payload.from_bytes(mutate(data, rng))
                if payload.size > LARGEST:
                    continue
                size = payload.size
                with np.errstate(all="ignore"):
                    codec.decode(payload)
            except PayloadError:
                pass
            else:
                assert tracemalloc.get_traced_memory()[1] - before <= 64 * size + (1 << 18)
    finally:
        tracemalloc.stop()
