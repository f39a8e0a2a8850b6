"""sign, compared with NumPy's signs and with random bits drawn by an independent Threefry."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import gaussian, recorded, student
from tests.codecs.low_bit_oracle import SIGN, body_of, coins, sign_bits

SIZES = [1, 7, 8, 63, 64, 65, 511, 512, 513, 8191, 8192, 8193, 30_001]


def with_zeros(size: int) -> np.ndarray:
    """Return samples of N(0, 1), of which a third is 0 and a third -0.0."""
    x = gaussian(size)
    x[::3] = 0
    x[1::3] = -0.0
    return x


@pytest.mark.parametrize("size", SIZES)
def test_bytes_are_the_sign_bits_and_coins_where_zero(size: int) -> None:
    x, key = with_zeros(size), Key.derive(5)
    payload = get_codec("sign").encode(x, key)
    expected = np.where(x == 0, coins(key.words, SIGN, size), np.signbit(x))
    np.testing.assert_array_equal(sign_bits(body_of(payload.to_bytes()), size), expected)


@pytest.mark.parametrize("size", SIZES)
def test_one_bit_a_coordinate(size: int) -> None:
    codec = get_codec("sign")
    assert codec.encode(gaussian(size), Key.derive(0)).nbytes == 12 + -(-size // 8) == codec.max_nbytes((size,))


@pytest.mark.parametrize("scale", [1e-45, 1e-40, 1e-30, 1, 1e30, 1e38])
def test_any_nonzero_number_has_its_sign(scale: float) -> None:
    x = np.clip(student(5000).astype(np.float64) * scale, -3.4e38, 3.4e38).astype(np.float32)
    x[x == 0] = np.float32(1e-45)
    codec = get_codec("sign")
    np.testing.assert_array_equal(codec.decode(codec.encode(x, Key.derive(1))), np.sign(x))


def test_the_largest_numbers_are_finite_though_their_sum_is_not() -> None:
    x = np.full(9000, np.finfo(np.float32).max)
    codec = get_codec("sign")
    assert (codec.decode(codec.encode(x, Key.derive(1))) == 1).all()


def test_zeros_do_not_drift() -> None:
    """Check 400 steps with new keys: the sums of decoded signs at the 4608 zeros are fair random walks.

    Each sum, and their total, is within 4.5 standard errors of 0; 3 % of seeds would fail.
    """
    x = recorded()
    dead = x.reshape(-1) == 0
    assert dead.mean() > 0.6
    codec, total = get_codec("sign"), np.zeros(x.shape, np.float32)
    for step in range(400):
        codec.decode_add(codec.encode(x, Key.derive(1, step)), total)
    walk = total.reshape(-1)[dead]
    assert np.abs(walk).max() < 4.5 * 20
    assert abs(walk.sum()) < 4.5 * 20 * np.sqrt(dead.sum())
    assert np.mean(walk.astype(np.float64) ** 2) == pytest.approx(400, rel=0.2)
    np.testing.assert_array_equal(total.reshape(-1)[~dead], 400 * np.sign(x.reshape(-1)[~dead]))


def test_coins_of_neighbours_steps_and_workers_are_independent() -> None:
    """Check that the 20 000 random bits of zeros are uncorrelated for lags up to 600 and between two keys, within 5 standard
    errors (4e-4 of seeds fail).
    """
    zeros, codec = np.zeros(20_000, np.float32), get_codec("sign")
    one, other = (codec.decode(codec.encode(zeros, Key.derive(1, worker))) for worker in (1, 2))
    for lag in range(1, 600):
        assert abs(np.mean(one[lag:] * one[:-lag])) < 5 / np.sqrt(zeros.size - lag)
    assert abs(np.mean(one * other)) < 5 / np.sqrt(zeros.size)


def test_its_contractive_form_is_scaledsign_the_multiple_of_least_error() -> None:
    x = gaussian(3000)
    form = get_codec("sign").contractive()
    assert form == get_codec("scaledsign")
    assert get_codec("contractive(sign)") == form
    signs = np.sign(x).astype(np.float64)
    best = np.dot(x, signs) / np.dot(signs, signs)
    np.testing.assert_allclose(form.decode(form.encode(x, Key.derive(0))), best * signs, rtol=1e-6)


@pytest.mark.parametrize("chain", ["{}+zstd", "topk:ratio=0.1+{}", "topk:ratio=0.1+{}+zstd"])
def test_in_a_chain_too_its_contractive_form_is_scaledsign(chain: str) -> None:
    """Check that a chain with sign has the same chain with scaledsign as its contractive form: the plain signs of small
    values would be larger than the array.
    """
    form = get_codec(chain.format("sign")).contractive()
    assert form == get_codec(chain.format("scaledsign"))
    x = gaussian(3000) * np.float32(1e-3)
    assert np.sum((x - form.decode(form.encode(x, Key.derive(0)))).astype(np.float64) ** 2) < np.sum(x.astype(np.float64) ** 2)


def test_it_is_neither_unbiased_nor_lossless_nor_linear_and_takes_no_parameters() -> None:
    codec = get_codec("sign")
    assert not any([codec.unbiased, codec.lossless, codec.linear, codec.sparse, codec.shaped])
    with pytest.raises(CodecSpecError):
        get_codec("sign:bits=1")


@pytest.mark.parametrize("size", [1, 7, 513])
def test_bits_behind_the_last_coordinate_are_refused(size: int) -> None:
    codec = get_codec("sign")
    data = bytearray(codec.encode(gaussian(size), Key.derive(0)).to_bytes())
    for bit in range(size % 8, 8):
        altered = bytes([*data[:-1], data[-1] | 1 << bit])
        with pytest.raises(PayloadError):
            codec.decode(Payload.from_bytes(altered))
