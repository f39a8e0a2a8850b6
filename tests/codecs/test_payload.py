"""The header of a payload, compared byte by byte."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.errors import CodecTypeError, CodecValueError, PayloadError
from tests.codecs.family import gaussian

KEY = Key.derive(3)


def test_header_of_an_array() -> None:
    data = get_codec("fp16").encode(np.zeros((3, 300), np.float32), KEY).to_bytes()
    assert data[:16] == bytes([1, 1, 2, 2, 0, 0, 0, 0, 3, 0, 0, 0, 44, 1, 0, 0])
    assert data[16:] == bytes(1800)


def test_header_of_a_scalar_and_of_an_empty_array() -> None:
    scalar, empty = np.ones((), np.float32), np.zeros((2, 0), np.float32)
    assert get_codec("identity").encode(scalar, KEY).to_bytes() == bytes([1, 1, 0, 1, 0, 0, 0, 0, 0, 0, 128, 63])
    assert get_codec("qsgd").encode(empty, KEY).to_bytes() == bytes([1, 1, 2, 5, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0])


def test_stages_of_chains_are_numbered_in_order() -> None:
    payload = get_codec("contractive(svd+qsgd+zstd)").encode(gaussian(30, 40), KEY)
    assert list(payload.to_bytes()[:8]) == [1, 4, 2, 96, 4, 5, 64, 0]
    assert payload.stages == ("contractive", "svd", "qsgd", "zstd")


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, np.array])
def test_from_bytes_does_not_copy(kind: type) -> None:
    data = np.frombuffer(get_codec("identity").encode(gaussian(100), KEY).to_bytes(), np.uint8).copy()
    buffer = data if kind is np.array else kind(data)
    payload = Payload.from_bytes(buffer)
    assert np.shares_memory(payload.data, np.frombuffer(buffer, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        payload.body[0] = 1


def test_from_bytes_copies_only_to_align() -> None:
    original = get_codec("qsgd").encode(gaussian(700), KEY)
    room = np.zeros(original.nbytes + 4, np.uint8)
    for offset in range(4):
        room[offset : offset + original.nbytes] = original.data
        payload = Payload.from_bytes(room[offset : offset + original.nbytes])
        assert payload == original
        assert np.shares_memory(payload.data, room) == (offset == 0)
        np.testing.assert_array_equal(get_codec("qsgd").decode(payload), get_codec("qsgd").decode(original))


def test_equality_is_by_bytes() -> None:
    one, other = (get_codec("qsgd").encode(gaussian(50), Key.derive(seed)) for seed in range(2))
    assert one == Payload.from_bytes(one.to_bytes())
    assert hash(one) == hash(Payload.from_bytes(one.to_bytes()))
    assert one != other
    assert one != one.to_bytes()
    assert repr(one) == f"<Payload qsgd of shape (50,), {one.nbytes} bytes>"


HEADER = [1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: 2}, "format 2 is not known"),
        ({1: 0}, "1 to 5 stages"),
        ({1: 6}, "1 to 5 stages"),
        ({4: 5}, "zeros after them"),
        ({2: 9}, "9 dimensions"),
        ({2: 3}, "3 dimensions"),
        ({3: 0}, "stage 0 is not known"),
        ({3: 255}, "stage 255 is not known"),
        ({11: 255}, "exceeds 268435456"),
    ],
)
def test_bad_headers_are_refused(change: dict[int, int], message: str) -> None:
    data = bytearray(HEADER)
    assert Payload.from_bytes(bytes(data)).shape == (1,)
    for at, value in change.items():
        data[at] = value
    with pytest.raises(PayloadError, match=message):
        Payload.from_bytes(bytes(data))


@pytest.mark.parametrize("shape", [(2**16, 2**13), (0, 2**29), (2**32 - 1, 0), (2**32 - 1,) * 8, (0, *(2**32 - 1,) * 7)])
def test_shapes_beyond_the_bound_are_refused_even_if_empty(shape: tuple[int, ...]) -> None:
    data = bytes([1, 1, len(shape), 1, 0, 0, 0, 0]) + b"".join(n.to_bytes(4, "little") for n in shape)
    with pytest.raises(PayloadError, match="exceeds 268435456 coordinates"):
        Payload.from_bytes(data)


@pytest.mark.parametrize("length", range(8))
def test_a_header_cut_short_is_refused(length: int) -> None:
    with pytest.raises(PayloadError, match="shorter than its header"):
        Payload.from_bytes(bytes(HEADER[:length]))


def test_what_is_no_buffer_is_refused() -> None:
    for wrong in ("text", 5, None, np.zeros(9, np.uint8)[::2]):
        with pytest.raises(CodecTypeError, match="contiguous bytes"):
            Payload.from_bytes(wrong)  # type: ignore[arg-type]


def test_an_empty_array_has_an_empty_body() -> None:
    codec = get_codec("qsgd")
    data = codec.encode(np.zeros((0, 3), np.float32), KEY).to_bytes()
    with pytest.raises(PayloadError, match="empty array has 4 bytes"):
        codec.decode(Payload.from_bytes(data + bytes(4)))


def test_arrays_beyond_the_bound_are_refused() -> None:
    huge = np.broadcast_to(np.zeros((), np.float32), (2**29,))
    with pytest.raises(CodecValueError, match="at most 268435456 values"):
        get_codec("identity").encode(np.lib.stride_tricks.as_strided(huge, (0, 2**29), (4, 0)), KEY)
