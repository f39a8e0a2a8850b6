"""Codes of variable length on a device: only the payload's bytes are copied."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.codecs import Payload, get_codec
from psnode.codecs.device.row_coder import DeviceCoder, kernels_for
from psnode.codecs.payload import header_nbytes
from psnode.errors import PayloadError
from psnode.exchange.device.placing import changes_on
from psnode.plans.groups import Plan
from tests.codecs.family import gaussian
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.forms import KEY
from tests.rows.hosted import GXX

pytestmark = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
SIZES = [700, 20480, 3 * 20480 + 1234]


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    return install(monkeypatch, tmp_path)


def mixed(size: int) -> np.ndarray:
    """Return values in blocks, of which every second one has many values beyond 3 and the others have few."""
    return gaussian(size) * np.where(np.arange(size) // 20480 % 2, 1, 5).astype(np.float32)


def coder_of(spec: str, size: int) -> DeviceCoder:
    kernels = kernels_for(get_codec(spec), CPU)
    assert kernels is not None
    return DeviceCoder(*kernels, size, CPU)


@pytest.mark.sweep
@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("spec", ["dithered", "dithered:step=0.04,bucket=512", "natural", "tbq", "tbq:tau=3", "tbq:tau=0.01"])
@pytest.mark.parametrize("size", SIZES)
def test_a_body_is_taken_put_back_and_decoded(spec: str, size: int) -> None:
    x, codec, coder = mixed(size), get_codec(spec), coder_of(spec, size)
    expected = codec.encode(x, KEY).body
    values = torch.zeros(coder.padded)
    values[:size] = torch.from_numpy(x)
    coder.encode(values, np.array(KEY.words, np.uint64))
    out = np.full(codec.max_nbytes((size,)), 0xAA, np.uint8)
    assert coder.take(out) == expected.size
    np.testing.assert_array_equal(out[: expected.size], expected)
    again = coder_of(spec, size)
    again.put(expected)
    found = torch.empty(coder.padded)
    again.decode(found)
    np.testing.assert_array_equal(found.numpy()[:size], codec.decode(codec.encode(x, KEY)))


@pytest.mark.usefixtures("cupy")
def test_what_is_not_finite_is_told_and_the_next_body_is_sound() -> None:
    size = SIZES[-1]
    for spec in ("dithered", "natural", "tbq", "tbq:tau=3"):
        coder, codec, key = coder_of(spec, size), get_codec(spec), np.array(KEY.words, np.uint64)
        values, out = torch.zeros(coder.padded), np.zeros(codec.max_nbytes((size,)), np.uint8)
        values[:size] = torch.from_numpy(mixed(size))
        for value in (np.nan, 1.0, np.inf, -1.0):
            values[30000] = value
            coder.encode(values, key)
            used = coder.take(out)
            assert coder.is_finite == np.isfinite(value)
        np.testing.assert_array_equal(out[:used], codec.encode(values.numpy()[:size], KEY).body)


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("spec", ["dithered", "natural", "tbq", "tbq:tau=3"])
def test_weights_are_changed_where_they_lie_and_zeros_keep_their_sign(spec: str) -> None:
    """Check that weights of -0 change exactly as on the host: a block that lists values leaves all other weights alone, and
    a dense block adds zeros.
    """
    size, codec = SIZES[-1], get_codec(spec).contractive()
    plan = Plan.from_dict({"tensors": [["a", [size]]], "groups": [[[spec, 0, [size]]]]})
    weights = torch.full((size,), -0.0)
    expected = weights.numpy().copy()
    change = changes_on(plan, [codec], weights).by_segment[0]
    for _ in range(2):
        payload = codec.encode(mixed(size), KEY)
        codec.decode_add(payload, expected)
        change.add(payload)
        np.testing.assert_array_equal(weights.numpy().view(np.uint32), expected.view(np.uint32))


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("scale", [0.0, 2.0**-3, 2.0**100])
def test_only_as_many_bits_as_the_exponents_need_come_and_go(scale: float) -> None:
    """Check code widths from zero to nine bits, one after another with the same coder: payloads and decoded values equal the
    host's.
    """
    size, codec = 3 * 512 + 77, get_codec("natural")
    coder, values = coder_of("natural", size), torch.zeros(3 * 512 + 512)
    for x in (gaussian(size) * np.float32(scale), mixed(size), np.resize(np.float32([2.0**127, 2.0**-149, 0]), size)):
        values[:size] = torch.from_numpy(x)
        coder.encode(values, np.array(KEY.words, np.uint64))
        out, expected = np.full(codec.max_nbytes((size,)), 0xAA, np.uint8), codec.encode(x, KEY)
        assert coder.take(out) == expected.body.size
        np.testing.assert_array_equal(out[: expected.body.size], expected.body)
        found, wanted = torch.ones(size + 100), np.ones(size + 100, np.float32)
        coder.add_to(found[:size], 0.5)  # the state that encode has left
        codec.decode_add(expected, wanted[:size], 0.5)
        np.testing.assert_array_equal(found.numpy(), wanted)
        coder.put(expected.body)
        coder.add_to(found[:size], 0.25)
        codec.decode_add(expected, wanted[:size], 0.25)
        np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize(("top", "exponents"), [(129, 9), (0, 256), (-149, 2), (1, 0)])
def test_a_change_with_exponents_that_float32_has_not_leaves_weights_as_they_are(top: int, exponents: int) -> None:
    size, codec = 700, get_codec("natural")
    plan = Plan.from_dict({"tensors": [["a", [size]]], "groups": [[["natural", 0, [size]]]]})
    weights = torch.ones(size)
    change = changes_on(plan, [codec], weights).by_segment[0]
    data = bytearray(codec.encode(gaussian(size), KEY).to_bytes())
    struct.pack_into("<hH", data, header_nbytes(1), top, exponents)
    with pytest.raises(PayloadError, match="exponents"):
        change.add(Payload.from_bytes(bytes(data)))
    assert bool((weights == 1).all())


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize(
    ("at", "value", "what"), [(24 + 3, 0x80, "scale"), (24 + 4, 9, "bits"), (24 + 5, 1, "zeros"), (8, None, "")]
)
def test_a_change_with_scales_or_widths_that_encode_never_writes_is_refused(at: int, value: int | None, what: str) -> None:
    """Check that the device refuses the same payloads as the host. A changed key is accepted, since the dither follows from
    the key in the payload.
    """
    size, codec = 700, get_codec("dithered")
    plan = Plan.from_dict({"tensors": [["a", [size]]], "groups": [[["dithered", 0, [size]]]]})
    weights, expected = torch.ones(size), np.ones(size, np.float32)
    change = changes_on(plan, [codec], weights).by_segment[0]
    data = bytearray(codec.encode(gaussian(size), KEY).to_bytes())
    place = header_nbytes(1) + at
    data[place] = data[place] ^ 1 if value is None else value
    payload = Payload.from_bytes(bytes(data))
    if value is None:
        change.add(payload)
        codec.decode_add(payload, expected)
    else:
        for add in (lambda: change.add(payload), lambda: codec.decode_add(payload, expected)):
            with pytest.raises(PayloadError, match=what):
                add()
    np.testing.assert_array_equal(weights.numpy(), expected)
