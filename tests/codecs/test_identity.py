"""Identity: payloads hold the values themselves."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.errors import CodecValueError, PayloadError
from tests.codecs.family import VALUES, gaussian

KEY = Key.derive(1)


@pytest.mark.parametrize("name", VALUES)
def test_the_body_is_the_values(name: str) -> None:
    x = VALUES[name]
    payload = get_codec("identity").encode(x, KEY)
    assert payload.body.tobytes() == x.tobytes()
    assert payload.nbytes == 8 + 4 * x.ndim + 4 * x.size
    np.testing.assert_array_equal(get_codec("identity").decode(payload).view(np.uint32), x.view(np.uint32))


def test_the_error_is_zero() -> None:
    x = gaussian(100)
    get_codec("identity").encode(x, KEY, error=x)
    np.testing.assert_array_equal(x, np.zeros(100, np.float32))


def test_merging_sums_in_order_in_float32() -> None:
    codec = get_codec("identity")
    parts = [gaussian(30, seed=seed) for seed in range(5)]
    expected = parts[0]
    for part in parts[1:]:
        expected = expected + part
    merged = codec.merge([codec.encode(part, KEY) for part in parts])
    np.testing.assert_array_equal(codec.decode(merged), expected)
    with pytest.raises(CodecValueError):
        codec.merge([])
    with pytest.raises(CodecValueError):
        codec.merge([codec.encode(gaussian(3), KEY), codec.encode(gaussian(4), KEY)])


def test_a_value_on_the_wire_that_is_not_finite_is_refused() -> None:
    codec = get_codec("identity")
    data = bytearray(codec.encode(gaussian(5000), KEY).to_bytes())
    data[-4:] = np.float32(np.nan).tobytes()
    sums = np.ones(5000, np.float32)
    with pytest.raises(PayloadError, match="not finite"):
        codec.decode_add(Payload.from_bytes(bytes(data)), sums)
    np.testing.assert_array_equal(sums, np.ones(5000, np.float32))
