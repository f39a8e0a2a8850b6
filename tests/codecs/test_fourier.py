"""Fourier ATOMO compared with SciPy's transform, a reader by cosines in NumPy, and the optimal variance by bisection.

Seeds are fixed, so a test passes always or never. Each test states the share of seeds for which a correct program would fail.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dct, idct

from psnode.codecs import Payload, get_codec
from psnode.codecs.entrywise import Entrywise
from psnode.codecs.fourier import Fourier
from psnode.codecs.kernels import cosines
from psnode.codecs.rng import Key
from psnode.errors import CodecSpecError, NonFiniteGradientError, PayloadError
from tests.codecs.golden_reader import header
from tests.codecs.golden_store import FOLDER, REWRITE
from tests.codecs.index_oracle import body_of, entrywise_parts
from tests.codecs.test__golden import fixed_input
from tests.codecs.test_entrywise import by_bisection

LARGEST = float(np.finfo(np.float32).max)
BLOCKS = [64, 128, 256, 512, 1024, 2048, 4096]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


def cuts(size: int, block: int) -> list[slice]:
    """Return the blocks of a vector as docs/payload-format.md defines them: the rest after the full blocks is cut into
    powers of two, largest first.
    """
    found, start = [], 0
    while start < size:
        length = min(block, 2 ** int(math.log2(size - start)))
        found.append(slice(start, start + length))
        start += length
    return found


def by_scipy(x: np.ndarray, block: int) -> np.ndarray:
    """Return the coefficients of x in float64, by SciPy's transform of each block."""
    flat = x.reshape(-1).astype(float)
    return np.concatenate([dct(flat[cut], norm="ortho") for cut in cuts(flat.size, block)])


def read(data: bytes) -> np.ndarray:
    """Return the decoded array in float64, by sums of cosines."""
    stages, shape, body = header(data)
    assert stages == [27]
    longest, e, *zeros = body[:4]
    assert zeros == [0, 0]
    size = int(np.prod(shape, dtype=np.int64))
    coefficients = np.zeros(size)
    limit = struct.unpack("<f", body[4:8])[0] if e == 1 else LARGEST
    _, indices, values = entrywise_parts(body[8:] if e == 1 else body[4:], size)
    coefficients[indices] = values.astype(float) / [1.0, 2.0**-8, 2.0**40][e]
    out = np.empty(size)
    for cut in cuts(size, 2**longest):
        n = cut.stop - cut.start
        sent = np.flatnonzero(coefficients[cut])  # the other atoms add nothing
        atoms = np.cos(np.pi / n * np.outer(np.arange(n) + 0.5, sent)) * np.where(sent, math.sqrt(2 / n), math.sqrt(1 / n))
        out[cut] = atoms @ coefficients[cut][sent]
    return out.clip(-limit, limit).reshape(shape)


# configuration


def test_the_bare_name_sends_one_coefficient_in_sixteen_of_blocks_of_64():
    codec = get_codec("fourier")
    assert codec == Fourier(budget=None, block=64)
    assert codec.unbiased
    assert not any([codec.linear, codec.shaped, codec.lossless, codec.sparse])
    payload = codec.encode(normal(16_000), Key.derive(1))
    assert entrywise_parts(body_of(payload.to_bytes())[4:], 16_000)[1].size == 1000


@pytest.mark.parametrize("spec", ["fourier", "fourier:budget=0.01", "fourier:budget=3.5,block=4096"])
def test_a_codec_is_what_its_repr_says(spec):
    codec = get_codec(spec)
    assert get_codec(repr(codec)) == codec
    assert get_codec(repr(codec.contractive())) == codec.contractive()


@pytest.mark.parametrize("setting", ["budget=0", "budget=nan", "budget=1e12", "block=32", "block=100", "block=8192", "block=6.4"])
def test_what_cannot_be_configured_is_refused(setting):
    with pytest.raises(CodecSpecError, match=setting.partition("=")[0]):
        get_codec(f"fourier:{setting}")


# the transform


def test_the_cosines_are_right_and_the_same_on_every_machine():
    """Check the table of factors against extended precision where available, and its digest, which depends only on exact
    operations of IEEE 754.
    """
    table = cosines.factors()
    assert table.size == cosines.LONGEST == BLOCKS[-1]
    for n in (2**power for power in range(1, 13)):
        angle = (np.arange(n // 2, dtype=np.longdouble) + 0.5) * (4 * np.arctan(np.longdouble(1))) / n
        expected = 0.5 / np.sin(2 * np.arctan(np.longdouble(1)) - angle)
        np.testing.assert_allclose(table[n // 2 : n], expected.astype(float), rtol=4e-15)
    assert hashlib.sha256(table.tobytes()).hexdigest()[:16] == TABLE


TABLE = "a2190e42bafc8070"


@pytest.mark.sweep
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("size", [1, 2, 3, 63, 64, 1000, 1024, 16 * 64 + 1, 5 * 4096 - 1, 70_000])
def test_coefficients_are_scipys_and_go_back_to_the_values(size, block):
    x = normal(size) * np.float32(3)
    found, back = np.empty_like(x), normal(size, seed=1)
    cosines.coefficients(x, block, 1.0, cosines.factors(), found)
    expected = by_scipy(x, block)
    np.testing.assert_allclose(found, expected, rtol=2**-23, atol=2**-23 * 1e-3)
    assert np.sum(found.astype(float) ** 2) == pytest.approx(np.sum(x.astype(float) ** 2), rel=1e-6)
    every = np.arange(size, dtype=np.uint32)
    added = back.copy()
    cosines.restore(every, found, block, 1.0, LARGEST, cosines.factors(), np.float32(0), back)
    np.testing.assert_allclose(back, x, atol=2e-6)
    cosines.restore(every, found, block, 1.0, LARGEST, cosines.factors(), np.float32(0.3), added)
    assert np.array_equal(added, normal(size, seed=1) + np.float32(0.3) * back)


def test_every_single_cosine_has_one_coefficient():
    for block in (64, 4096):
        for k in (0, 1, 5, block // 2, block - 1):
            spectrum = np.zeros(block)
            spectrum[k] = 8
            found = np.empty(block, np.float32)
            cosines.coefficients(idct(spectrum, norm="ortho").astype(np.float32), block, 1.0, cosines.factors(), found)
            np.testing.assert_allclose(found, spectrum, atol=2e-5)


# the draw


@pytest.mark.sweep
@pytest.mark.parametrize("budget", [None, 1, 7.5, 0.3, 1e6])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (100, 37), (16, 8, 3, 3), (40_001,)])
@pytest.mark.parametrize("block", [64, 1024])
def test_the_rest_of_the_body_is_entrywises_for_the_coefficients(shape, budget, block):
    x = np.asarray(normal(*shape))
    payload = Fourier(budget=budget, block=block).encode(x, Key.derive(3))
    sent = np.empty(x.size, np.float32)
    cosines.coefficients(x.reshape(-1), block, 1.0, cosines.factors(), sent)
    alone = Entrywise(budget=budget).encode(sent, Key.derive(3))
    body = body_of(payload.to_bytes())
    assert body == bytes([block.bit_length() - 1, 0, 0, 0]) + body_of(alone.to_bytes())
    assert payload.nbytes <= Fourier(budget=budget, block=block).max_nbytes(shape)
    decoded = Fourier().decode(Payload.from_bytes(payload.to_bytes()))
    np.testing.assert_allclose(decoded, read(payload.to_bytes()), rtol=1e-6, atol=1e-6 * np.abs(decoded).max())


def test_a_budget_of_all_coefficients_gives_the_array_back_but_for_rounding():
    for x in (normal(1000), normal(31, 50) * np.float32(1e30), np.full(77, 0.1, np.float32)):
        codec = Fourier(budget=x.size)
        np.testing.assert_allclose(codec.decode(codec.encode(x, Key.derive(1))), x, atol=4e-7 * np.abs(x).max() * 8)
        assert codec.omega(x) == 0


def hard() -> dict[str, np.ndarray]:
    """Return inputs of 300 values, the last 44 of which are cut into 32, 8 and 4 for blocks of 64."""
    rng, place = np.random.default_rng(5), np.arange(300)
    signs = np.where(rng.random(300) < 0.5, -1, 1)
    spectrum = np.zeros(300)
    spectrum[7] = 3
    one_cosine = np.concatenate([idct(spectrum[cut], norm="ortho") for cut in cuts(300, 64)])
    found = {
        "one coefficient": one_cosine,
        "one coordinate": 2.0 * (place == 17),
        "one coordinate, of the last block": 2.0 * (place == 299),
        "all equal": np.full(300, 0.1),
        "equal but for signs": signs,
        "powers of two": 2.0 ** -(place % 12) * signs,
        "heavy tails": rng.standard_cauchy(300),
        "heavy tails and zeros": rng.standard_t(1.5, 300) * (rng.random(300) < 0.38),
        "one among small ones": np.where(place == 40, 30, rng.standard_normal(300)),
        "smooth": np.sin(place / 20) + 0.01 * rng.standard_normal(300),
    }
    return {name: x.astype(np.float32) for name, x in found.items()}


HARD = hard()


@pytest.mark.sweep
@pytest.mark.parametrize("budget", [1, 6.5, 0.2])
@pytest.mark.parametrize("name", HARD)
def test_no_bias_on_hard_inputs_and_the_optimums_variance(name, budget):
    """Check the mean of 2000 decodes in sums over 18 classes of values and coefficients by magnitude, within 5 standard
    errors.

    If the 540 means were normal, a correct program would fail one for 3e-4 of seeds; as they are, for less than 2e-3. The
    mean squared error must be within 5 standard errors of sum (V - |c|) |c|, for coefficients c and the level V found by
    bisection; this adds 2e-5.
    """
    x, codec = HARD[name], Fourier(budget=budget)
    c = by_scipy(x, 64)
    decoded = np.array([codec.decode(codec.encode(x, Key.derive(number))) for number in range(2000)], float)
    moved = np.array([by_scipy(each, 64) for each in decoded])
    for values, drawn in ((x.astype(float), decoded), (c, moved)):
        ranks = np.abs(values).argsort(kind="stable").argsort()
        classes = [np.where(values < 0, -1, 1) * (ranks * 8 // values.size == part) for part in range(8)] + [values]
        deviations = (drawn - values) @ np.array(classes, float).T
        bound = 5 * deviations.std(axis=0, ddof=1) / math.sqrt(len(drawn))
        seldom = 1e-4 * np.array([np.abs(each).sum() for each in classes]) * np.abs(values).max()  # zeros after rounding
        assert np.all(np.abs(deviations.mean(axis=0)) <= bound + seldom)
    p = by_bisection(c.astype(np.float32), max(1.0, budget * x.size) if budget < 1 else budget)
    held = (p > 0) & (np.abs(c) > 1e-6 * np.abs(c).max())  # the others are rounding errors of x
    theory = float(np.sum(c[held] ** 2 / p[held] - c[held] ** 2))
    errors = np.sum((decoded - x) ** 2, axis=1)
    energy = float(np.sum(c**2))
    assert abs(errors.mean() - theory) <= 5 * errors.std(ddof=1) / math.sqrt(len(errors)) + 1e-3 * theory + 1e-4 * energy
    assert codec.omega(x) == pytest.approx(theory / energy, rel=1e-3, abs=1e-6)


def test_a_fourier_basis_helps_where_neighbours_are_alike_and_hurts_where_one_stands_out():
    smooth, spike, noise = HARD["smooth"], HARD["one coordinate"], normal(6400)
    assert Fourier(0.1).omega(smooth) < 0.1 * Entrywise(0.1).omega(smooth)
    assert Entrywise(0.1).omega(spike) == 0 < Fourier(0.1).omega(spike)
    assert Fourier(0.1).omega(noise) == pytest.approx(Entrywise(0.1).omega(noise), rel=0.05)


# scales, errors


@pytest.mark.parametrize("scale", [1e-41, 1e-33, 1e-30, 1e30, 1e36])
def test_scale_changes_nothing_but_the_scale(scale):
    x = normal(5000)
    scaled = (x.astype(float) * scale).astype(np.float32)
    codec = Fourier(budget=2500)
    y = codec.decode(codec.encode(scaled, Key.derive(2))).astype(float) / scale
    expected = read(codec.encode(scaled, Key.derive(2)).to_bytes()) / scale
    np.testing.assert_allclose(y, expected, atol=1e-5 if scale > 1e-37 else 1e-3)
    assert np.sum((y - x) ** 2) / np.sum(x**2) == pytest.approx(codec.omega(x), rel=0.1)


@pytest.mark.parametrize("block", BLOCKS)
def test_full_scale_stays_finite_and_comes_back(block):
    """Check values from half of the largest float32 on: a decoded value is clipped where the largest value plus its loss
    would exceed float32.
    """
    x = np.full(2 * block + 3, LARGEST / 2, np.float32)
    codec = Fourier(budget=x.size, block=block)
    np.testing.assert_allclose(codec.decode(codec.encode(x, Key.derive(1))), x, rtol=1e-5)
    few = Fourier(budget=2, block=block)
    for number in range(20):
        for scale in (1, 1.5, 2):
            sent = x * np.float32(scale) * np.where(np.arange(x.size) % 3, 1, -1).astype(np.float32)
            payload = few.encode(sent, Key.derive(number))
            y = few.decode(payload)
            with np.errstate(over="raise"):
                assert np.isfinite(sent - y).all()
            np.testing.assert_allclose(y, read(payload.to_bytes()), atol=1e-6 * LARGEST)


def test_the_limit_leaves_room_for_the_largest_value():
    """Check the limit of decoded values, for magnitudes from 2^120 on, given as bits.

    The limit is the largest float32 minus the magnitude, rounded down if this is not a float32.
    """
    for magnitude in np.array([0x7B800001, 0x7C7FFFFF, 0x7E800001, 0x7EFFFFFF, 0x7F000001, 0x7F7FFFFF], np.uint32).view(
        np.float32
    ):
        payload = Fourier().encode(np.full(64, magnitude, np.float32), Key.derive(1)).to_bytes()
        limit = struct.unpack("<f", payload[16:20])[0]
        assert float(magnitude) + limit <= LARGEST
        above = float(np.nextafter(np.float32(limit), np.float32(np.inf)))
        assert limit == LARGEST - float(magnitude) or float(magnitude) + above > LARGEST


@pytest.mark.parametrize("index", [0, 63, 5000, 9_999])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(index, value):
    x = normal(10_000)
    x[index] = value
    with pytest.raises(NonFiniteGradientError) as caught:
        Fourier().encode(x, Key.derive(1))
    assert caught.value.index == index


def test_blocks_without_coefficients_decode_to_zeros_and_are_left_alone():
    x = np.zeros(40_000, np.float32)
    x[20_000:20_100] = normal(100)
    codec = Fourier(budget=30)
    payload = codec.encode(x, Key.derive(1))
    y = codec.decode(payload, np.full(x.shape, np.nan, np.float32))
    assert np.isfinite(y).all()
    assert np.flatnonzero(y).min() >= 19_968
    assert np.flatnonzero(y).max() < 20_160
    out = np.full(x.shape, 7, np.float32)
    codec.decode_add(payload, out, 0)
    assert np.array_equal(out, np.full(x.shape, 7, np.float32))


def test_four_bytes_more_than_entrywise_for_as_many_entries():
    """Check that fourier and entrywise payloads of Gaussian values have equal sizes within 1 %: the coefficients are
    Gaussian too.
    """
    x = normal(1 << 18)
    mine, other = (get_codec(name).encode(x, Key.derive(1)).nbytes for name in ("fourier", "entrywise"))
    assert mine == pytest.approx(other, rel=0.01)
    assert 8 * mine / x.size < 0.41


# invalid bytes


@pytest.mark.parametrize("limit", [-1.0, np.nan, np.inf])
def test_a_limit_that_is_none_is_refused(limit):
    data = bytearray(Fourier().encode(normal(1000) * np.float32(1e37), Key.derive(1)).to_bytes())
    assert data[13] == 1
    data[16:20] = struct.pack("<f", limit)
    with pytest.raises(PayloadError, match="limit"):
        Fourier().decode(Payload.from_bytes(data))


@pytest.mark.parametrize(("at", "value"), [(0, 5), (0, 13), (0, 255), (1, 3), (1, 255), (2, 1), (3, 128)])
def test_fields_that_are_none_are_refused(at, value):
    data = bytearray(Fourier(budget=40).encode(normal(1000), Key.derive(1)).to_bytes())
    data[12 + at] = value
    out = np.ones(1000, np.float32)
    with pytest.raises(PayloadError, match="fields"):
        Fourier().decode_add(Payload.from_bytes(data), out)
    assert np.all(out == 1)


def test_every_truncation_is_refused():
    data = Fourier(budget=40).encode(normal(1000), Key.derive(1)).to_bytes()
    for length in range(12, len(data)):
        with pytest.raises(PayloadError):
            Fourier().decode(Payload.from_bytes(data[:length]))
    with pytest.raises(PayloadError):
        Fourier().decode(Payload.from_bytes(data + bytes(4)))


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(12, 400), st.integers(0, 255)), min_size=1, max_size=4))
def test_altered_bytes_are_refused_or_decode_to_some_finite_array(changes):
    data = bytearray(Fourier(budget=60).encode(normal(1500), Key.derive(1)).to_bytes())
    for index, byte in changes:
        data[min(index, len(data) - 1)] = byte
    try:
        y = Fourier().decode(Payload.from_bytes(data))
    except PayloadError:
        return
    assert y.shape == (1500,)
    assert np.isfinite(y).all()


# golden bytes


GOLDEN = {"fourier": 736879939, "fourier:budget=40,block=256": 1673766822}
FILES = {"fourier": "fourier", "fourier:budget=40,block=256": "fourier-40-256"}


@pytest.mark.parametrize("spec", GOLDEN)
def test_golden_bytes(spec):
    """Check that payload bytes and decoded bits are the stored ones, on every machine, and that the reader by cosines finds
    the same values up to rounding.
    """
    path, codec = FOLDER / f"{FILES[spec]}.bin", get_codec(spec)
    payload = codec.encode(fixed_input(), Key.derive(1, "golden"))
    if REWRITE:
        path.write_bytes(payload.to_bytes())
    stored = Payload.from_bytes(path.read_bytes())
    assert payload == stored
    decoded = codec.decode(stored)
    assert zlib.crc32(decoded.tobytes()) == GOLDEN[spec]
    expected = read(stored.to_bytes())
    for cut in cuts(decoded.size, codec.block):
        largest = np.abs(expected.reshape(-1)[cut]).max()
        np.testing.assert_allclose(decoded.reshape(-1)[cut], expected.reshape(-1)[cut], atol=1e-6 * largest)
