"""`measure` returns a payload's norm, and decoders return finite values only."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import Codec, Payload, get_codec
from psnode.codecs.payload import header_nbytes
from psnode.codecs.rng import Key
from psnode.errors import PayloadError
from tests.codecs.family import forms, gaussian

KEY = Key.derive(3)
EXTREME = [0x7F7FFFFF, 0xFF7FFFFF, 0x7F000000, 0xFF000000, 0x7F800000, 0x7FC00000]  # +-3.4e38, +-1.7e38, infinity, NaN
BY_SCALE = ("qsgd", "nuqsgd", "terngrad", "minmax", "onebit")  # their norm is an upper bound


@pytest.fixture(params=[*forms(), "contractive(qsgd)", "contractive(svd)", "contractive(natural)"], scope="module")
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


@pytest.mark.parametrize("shape", [(20, 33), (600,), (3,), (0,)])
@pytest.mark.parametrize("weight", [1.0, -0.5, 1 / 3])
def test_measure_adds_what_decode_add_adds(codec: Codec, shape: tuple[int, ...], weight: float) -> None:
    payload = codec.encode(gaussian(*shape), KEY)
    start = gaussian(*shape, seed=2)
    expected, found = start.copy(), start.copy().reshape(-1)
    codec.decode_add(payload, expected, weight)
    measured = codec.measure(payload, np.full(700, np.nan, np.float32))
    measured.add(found, np.float32(weight))
    np.testing.assert_array_equal(found, expected.reshape(-1))


@pytest.mark.parametrize("shape", [(20, 33), (600,), (3,), (0,)])
def test_the_norm_is_that_of_what_is_decoded_or_a_bound_on_it(codec: Codec, shape: tuple[int, ...]) -> None:
    payload = codec.encode(gaussian(*shape), KEY)
    decoded = codec.decode(payload).astype(np.float64)
    norm, true = codec.measure(payload).norm, float(np.linalg.norm(decoded))
    if getattr(codec, "linear", False) and not codec.lossless:  # the norm of the sketch itself
        assert norm >= np.abs(decoded).max(initial=0) * (1 - 1e-6)
    elif any(name in repr(codec) for name in BY_SCALE):
        assert true * (1 - 1e-6) <= norm <= 26 * true
    else:
        assert norm == pytest.approx(true, rel=1e-5)


@pytest.mark.parametrize("factor", [100.0, 2.0**-40])
def test_a_gradient_times_a_factor_has_the_norm_times_that(codec: Codec, factor: float) -> None:
    """Check that scaling a gradient scales the measured norm by the same factor, within 30 %. Codecs with the stage sign are
    skipped, and so are scaled gradients that decode to zeros.
    """
    x = gaussian(20, 33)
    payloads = [codec.encode((x * np.float32(f)).astype(np.float32), KEY) for f in (1.0, factor)]
    if not codec.decode(payloads[1]).any() or any(stage == "sign" for stage in codec.stages):
        pytest.skip("decoded values do not scale")
    small, large = (codec.measure(payload).norm for payload in payloads)
    assert large == pytest.approx(factor * small, rel=0.3)


def test_what_is_decoded_is_finite_or_refused_before_anything_is_added(codec: Codec) -> None:
    """Replace words of valid payloads by extreme numbers, infinities and NaNs. Decoded values must be finite or refused, and
    `measure` must refuse whenever decode does.
    """
    rng = np.random.default_rng(5)
    seeds = [np.frombuffer(codec.encode(gaussian(*shape), KEY).to_bytes(), np.uint8) for shape in ((20, 33), (600,), (3,))]
    for number in range(240):
        data = seeds[number % 3].copy()
        start = header_nbytes(int(data[2]))
        words = (data.size - start) // 4
        for _ in range(rng.integers(1, 4) if words else 0):
            at = start + 4 * int(rng.integers(min(words, 6) if number % 2 else words))
            data[at : at + 4] = np.frombuffer(int(rng.choice(EXTREME)).to_bytes(4, "little"), np.uint8)
        payload = Payload.from_bytes(data.tobytes())
        sums = np.zeros(payload.size, np.float32)
        try:
            values = codec.decode(payload)
        except PayloadError:
            with pytest.raises(PayloadError):
                codec.measure(payload)
            with pytest.raises(PayloadError):
                codec.decode_add(payload, sums)
            assert not sums.any()
            continue
        assert np.isfinite(values).all()
        measured = codec.measure(payload)
        assert float(np.abs(values).max(initial=0)) <= measured.norm * (1 + 1e-6)
        measured.add(sums, np.float32(1))
        np.testing.assert_array_equal(sums, np.zeros(payload.size, np.float32) + values.reshape(-1))
