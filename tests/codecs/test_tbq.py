"""tbq compared with direct comparisons, its block sizes, and the residual of Strom's algorithm."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from psnode.codecs import Payload, get_codec
from psnode.codecs.kernels.tbq import SHARE
from psnode.codecs.rng import Key
from psnode.errors import CodecSpecError, NonFiniteGradientError, PayloadError
from tests.codecs.family import fed_back, gaussian, recorded, student

BLOCK = 20480
INPUTS = {"gaussian": gaussian(50_001), "student": student(50_001), "recorded": recorded().reshape(-1)}
TAUS = [1e-3, 0.5, 1.5, 2.0, 3.0, 5.0]


def encode(x: np.ndarray, tau: float | str = "") -> Payload:
    return get_codec(f"tbq:tau={tau}").encode(x, Key.derive(0))


def decoded(x: np.ndarray, tau: float | str = "") -> np.ndarray:
    return get_codec("tbq").decode(encode(x, tau))


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("name", INPUTS)
def test_what_reaches_tau_is_sent_as_tau(name: str, tau: float) -> None:
    x, t = INPUTS[name], np.float32(tau)
    np.testing.assert_array_equal(decoded(x, tau), np.where(x >= t, t, np.where(x <= -t, -t, np.float32(0))))


def test_tau_itself_is_sent_and_the_number_below_is_not() -> None:
    t = np.float32(0.3)
    below = np.nextafter(t, np.float32(0))
    for filler in (0, 1):  # a sparse and a dense block
        x = np.full(3000, filler, np.float32)
        x[:4] = t, -t, below, -below
        np.testing.assert_array_equal(decoded(x, 0.3)[:4], np.float32([0.3, -0.3, 0, 0]))


@pytest.mark.parametrize("name", INPUTS)
def test_by_default_tau_is_a_share_of_the_root_of_the_mean_square(name: str) -> None:
    x = INPUTS[name]
    (tau,) = struct.unpack_from("<f", encode(x).to_bytes(), 12)
    assert tau == pytest.approx(SHARE * np.sqrt(np.mean(x.astype(np.float64) ** 2)), rel=1e-6)


def test_the_share_is_the_one_that_takes_most_from_a_gaussian() -> None:
    """Check that SHARE is the threshold t at which SciPy finds the maximum of E[(2 |x| t - t^2); |x| >= t], computed by
    numerical integration.
    """

    def taken(t: float) -> float:
        return float(2 * norm.expect(lambda x: 2 * x * t - t * t, lb=t))

    best = minimize_scalar(lambda t: -taken(t), bounds=(0.1, 3), method="bounded")
    assert pytest.approx(best.x, abs=0.01) == SHARE
    x = gaussian(1_000_000)
    left = np.sum((x - decoded(x)).astype(np.float64) ** 2) / np.sum(x.astype(np.float64) ** 2)
    assert left == pytest.approx(1 - taken(SHARE), rel=0.01)


@pytest.mark.parametrize(
    "x", [np.ones(700, np.float32), np.float32([5]), np.eye(1, 900, 7, np.float32)[0], student(3000) ** 5, gaussian(9) * 1e-42]
)
def test_by_default_something_is_taken_from_any_array(x: np.ndarray) -> None:
    x = x.astype(np.float32)
    left = x.astype(np.float64) - decoded(x)
    assert np.sum(left**2) < np.sum(x.astype(np.float64) ** 2)


def blocks_of(x: np.ndarray, tau: float) -> int:
    """Return the number of bytes of the blocks: per block 2, plus the smaller of 2 per sent value and 1 per 5 coordinates."""
    total = 0
    for start in range(0, x.size, BLOCK):
        v = x[start : start + BLOCK]
        total += 2 + min(2 * int((np.abs(v) >= np.float32(tau)).sum()), -(-v.size // 5))
    return total


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("name", INPUTS)
def test_every_block_is_dense_or_sparse_whichever_is_smaller(name: str, tau: float) -> None:
    x = INPUTS[name]
    payload = encode(x, tau)
    assert payload.nbytes == 12 + 4 + blocks_of(x, tau)
    assert payload.nbytes <= get_codec("tbq").max_nbytes(x.shape)
    assert payload.nbytes <= 16 + 2 * 3 + x.size / 4  # never more than two bits per coordinate


def test_one_value_in_a_hundred_costs_16_bits_each() -> None:
    x = gaussian(1_000_000)
    tau = float(np.quantile(np.abs(x), 0.99))
    assert 8 * encode(x, tau).nbytes == pytest.approx(16 * 10_000, rel=0.02)


def test_a_block_for_itself_is_dense_beside_sparse_ones() -> None:
    x = np.zeros(3 * BLOCK, np.float32)
    x[BLOCK : 2 * BLOCK] = 1
    assert encode(x, 1).nbytes == 16 + 2 + (2 + BLOCK // 5) + 2
    np.testing.assert_array_equal(decoded(x, 1), x)


def test_an_array_of_zeros_is_nothing_at_all() -> None:
    for tau in ("", 1e-3):
        assert encode(np.zeros(700, np.float32), tau).nbytes == 18
        assert not decoded(np.zeros(700, np.float32), tau).any()


@pytest.mark.parametrize("tau", [0.3, 1.0])
def test_the_residual_stays_below_tau_while_gradients_do(tau: float) -> None:
    """Check the residual in Strom's loop, which adds g to the residual and sends the values that reach tau: if |g| < tau, it
    stays in (-tau, tau).
    """
    codec, residual = get_codec(f"tbq:tau={tau}"), np.zeros(3000, np.float32)
    gradients, sent = np.zeros(3000), np.zeros(3000)
    for step in range(200):
        g = (np.tanh(gaussian(3000, seed=step)) * tau * 0.99).astype(np.float32)
        gradients += g
        payload = fed_back(codec, g, Key.derive(step), residual)
        sent += codec.decode(payload)
        assert np.abs(residual).max() < tau
    np.testing.assert_allclose(sent + residual, gradients, atol=200 * tau * 1e-6)


def test_a_steady_gradient_arrives_at_its_own_rate() -> None:
    """Check that 1000 steps with gradients up to 0.01 and a threshold of 1 send the sum of the gradients within one threshold."""
    codec, residual, out = get_codec("tbq:tau=1"), np.zeros(100, np.float32), np.zeros(100, np.float32)
    g = np.linspace(-0.01, 0.01, 100, dtype=np.float32)
    for step in range(1000):
        codec.decode_add(fed_back(codec, g, Key.derive(step), residual), out)
    assert np.abs(out - 1000 * g.astype(np.float64)).max() < 1 + 1e-3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tau", [0.5, 5.0])
def test_values_that_are_not_finite_are_found_in_dense_and_sparse_blocks(value: float, tau: float) -> None:
    for index in (0, BLOCK - 1, BLOCK, 50_000):
        x = gaussian(50_001)
        x[index] = value
        with pytest.raises(NonFiniteGradientError) as caught:
            encode(x, tau)
        assert caught.value.index == index


SPARSE = np.zeros(1000, np.float32)
SPARSE[[3, 500, 999]] = 2, -2, 2


def body_with(blocks: bytes, tau: float = 2.0) -> Payload:
    return Payload.from_bytes(encode(SPARSE, 2).to_bytes()[:12] + np.float32(tau).tobytes() + blocks)


def entries(*places: int, count: int | None = None) -> bytes:
    return struct.pack(f"<{1 + len(places)}H", len(places) if count is None else count, *places)


def test_entries_are_a_place_and_a_sign() -> None:
    assert encode(SPARSE, 2) == body_with(entries(3, 500 + 32768, 999))
    np.testing.assert_array_equal(get_codec("tbq").decode(body_with(entries(3, 500 + 32768, 999))), SPARSE)


@pytest.mark.parametrize(
    "blocks",
    [
        b"",
        b"\0",
        entries(3, 3),
        entries(5, 4),
        entries(5, 5 + 32768),
        entries(1000),
        entries(1, 2, count=1),
        entries(1, count=2),
        entries(1) + entries(),
        entries(*range(100)),
        entries(count=65534),
        entries(count=65535),
        entries(count=65535) + bytes([243]) * 200,
        entries(count=65535) + bytes(199),
        entries(count=65535) + bytes(201),
    ],
    ids=range(15),
)
def test_blocks_that_encode_does_not_write_are_refused(blocks: bytes) -> None:
    """Check the refusal of blocks that are cut, repeated, out of order, out of range or too full for a sparse block, or that
    have invalid digits.
    """
    out = gaussian(1000)
    before = out.copy()
    with pytest.raises(PayloadError, match="blocks"):
        get_codec("tbq").decode_add(body_with(blocks), out)
    np.testing.assert_array_equal(out, before)


@pytest.mark.parametrize("tau", [np.nan, np.inf, -1.0])
def test_a_tau_that_is_no_magnitude_is_refused(tau: float) -> None:
    with pytest.raises(PayloadError, match="tau"):
        get_codec("tbq").decode(body_with(entries(3), tau))


@pytest.mark.parametrize("tau", ["0", "-1", "nan", "inf", "1e39", "small"])
def test_what_cannot_be_configured_is_refused(tau: str) -> None:
    with pytest.raises(CodecSpecError, match="tau"):
        get_codec(f"tbq:tau={tau}")
