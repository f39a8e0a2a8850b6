"""Entry-wise ATOMO compared with probabilities by bisection, exact inclusion measures and a reader in plain Python.

Seeds are fixed, so a test passes always or never. A bound of 4 standard errors would fail a correct program for a share of 6e-5
of the seeds.
"""

from __future__ import annotations

import itertools
import math
import struct
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from psnode.codecs import Payload, get_codec
from psnode.codecs.base import readonly
from psnode.codecs.entrywise import Entrywise
from psnode.codecs.selection import waterfilling
from psnode.errors import CodecSpecError, NonFiniteGradientError, PayloadError
from tests.codecs.golden_reader import read as read_golden
from tests.codecs.golden_store import check_golden
from tests.codecs.index_oracle import body_of, entrywise_parts, log2_binomial

KEY = np.array([5, 11], np.uint64)
LARGEST = float(np.finfo(np.float32).max)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return rng(seed).standard_normal(shape).astype(np.float32)


def heavy(size: int, seed: int = 0) -> np.ndarray:
    """Return samples of Student's t with 1.5 degrees of freedom, with 62 % exact zeros."""
    return (rng(seed).standard_t(1.5, size) * (rng(seed + 1).random(size) < 0.38)).astype(np.float32)


def by_bisection(x: np.ndarray, budget: float) -> np.ndarray:
    """Return the probabilities min(1, c |x|), with the c at which they sum to `budget`."""
    lam = np.abs(x.reshape(-1).astype(float))
    if np.count_nonzero(lam) <= budget:
        return (lam > 0).astype(float)
    low, high = 0.0, 1.0 / lam[lam > 0].min()
    for _ in range(2000):
        middle = math.sqrt(low * high) if low else high / 1e6
        if np.minimum(1.0, middle * lam).sum() < budget:  # pairwise, so rounded by about 1e-15
            low = middle
        else:
            high = middle
        if high <= low * (1 + 1e-15):
            break
    return np.minimum(1.0, high * lam)


def theoretical_omega(x: np.ndarray, budget: float) -> float:
    lam, p = np.abs(x.reshape(-1).astype(float)), by_bisection(x, budget)
    held = p > 0
    return float(np.sum(lam[held] ** 2 / p[held]) / np.sum(lam**2) - 1)


def read(payload: bytes, size: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the level V, the sent indices and their decoded values, read by the byte table."""
    return entrywise_parts(body_of(payload), size)


# configuration


def test_the_bare_name_sends_one_entry_in_sixteen():
    codec = get_codec("entrywise")
    assert codec == Entrywise(budget=None)
    assert codec.unbiased
    assert codec.sparse
    assert not any([codec.linear, codec.shaped, codec.lossless])
    assert codec.support(codec.encode(normal(16_000), rng())).size == 1000


@pytest.mark.parametrize("spec", ["entrywise", "entrywise:budget=", "entrywise:budget=0.01", "entrywise:budget=3.5"])
def test_a_codec_is_what_its_repr_says(spec):
    codec = get_codec(spec)
    assert get_codec(repr(codec)) == codec
    assert get_codec(repr(codec.contractive())) == codec.contractive()


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "inf", "1e12", "some"])
def test_what_cannot_be_configured_is_refused(budget):
    with pytest.raises(CodecSpecError, match="budget"):
        get_codec(f"entrywise:budget={budget}")


# level and draw


INPUTS = {
    "normal": normal(60_000),
    "heavy, mostly zero": heavy(60_000),
    "geometric": np.float32(0.5) ** np.arange(140, dtype=np.float32),
    "equal": np.full(300, 3, np.float32),
    "one large": np.concatenate([[1e20], np.full(40_000, 1e-10)]).astype(np.float32),
    "large in one place": np.concatenate([normal(50_000), 1e4 * normal(20)]),
    "with zeros": np.array([0, 5, 0, 1, 1, 2, 0, 4], np.float32),
    "1e-40": 1e-40 * normal(500),
    "1e30": 1e30 * normal(500),
}


@pytest.mark.parametrize("budget", [1, 1.5, 3, 20.25, 100, 5000])
@pytest.mark.parametrize("name", INPUTS)
def test_the_level_is_that_of_a_bisection(name, budget):
    x = readonly(INPUTS[name].astype(np.float32))
    level, divisor = waterfilling.level_of(x, budget, KEY, 15)
    magnitudes, p = np.abs(x.astype(float)), by_bisection(x, budget)
    if not ((p > 0) & (p < 1)).any():
        assert level == divisor == 0 or np.all(magnitudes[magnitudes > 0] >= level)
        return
    # rounded up to a float32: by at most 2^-23 of its value, or one denormal step
    found = np.where(magnitudes > level, 1.0, magnitudes / divisor)
    assert np.abs(found - p).max() <= (2**-22 if level > 1e-37 else 1e-3)
    assert divisor == level
    assert math.fsum(found) <= budget * (1 + 1e-9)


@given(hnp.arrays(np.float32, st.integers(1, 40), elements=st.floats(-1e6, 1e6, width=32)), st.floats(1, 45))
def test_any_level_spends_the_budget_and_no_more(x, budget):
    level, divisor = waterfilling.level_of(readonly(x), budget, KEY, 15)
    magnitudes = np.abs(x.astype(float))
    p = np.where(magnitudes > level, 1.0, magnitudes / (divisor or 1.0))
    available = np.count_nonzero(magnitudes)
    assert math.fsum(p) <= min(budget, available) * (1 + 1e-9)
    if level > 1e-30:
        assert math.fsum(p) >= min(budget, available) * (1 - 1e-6)


def units_of(x: np.ndarray, level: float, dither: Fraction) -> list[int]:
    """Return the entries' probabilities in units of 2^-43, computed in rational arithmetic and rounded to integers by
    `dither`; 0 for entries that are certain, since these are not drawn.
    """
    scale = Fraction(2**43) / Fraction(float(level))
    return [0 if abs(v) > level else math.floor(Fraction(float(abs(v))) * scale + dither) for v in x]


@pytest.mark.parametrize("dither", [Fraction(0), Fraction(1, 3), Fraction(4095, 4096)])
@pytest.mark.parametrize("budget", [1, 2.5, 7])
def test_every_entry_is_drawn_exactly_as_often_as_its_probability(budget, dither):
    """Check that the starting points that draw entry i have a total length equal to its probability. Each cell of starting
    points is tested at both ends.
    """
    x = readonly(np.concatenate([rng(4).standard_t(2, 40), np.zeros(5), [1e-14, 1e-3]]).astype(np.float32))
    level = waterfilling.level_of(x, budget, KEY, 15)[0]
    expected = units_of(x, level, dither)
    units = 2**43
    cuts = sorted({0, units, *((units - edge % units) % units for edge in itertools.accumulate(expected))})
    measure, sizes = np.zeros(x.size, np.int64), set()
    certain = set(np.flatnonzero(np.abs(x) > level).tolist())
    for low, high in itertools.pairwise(cuts):
        taken = []
        for point in (low, high - 1):
            indices, values = np.empty(x.size + 32, np.uint32), np.empty(x.size + 32, np.float32)
            count = waterfilling._draw(x, level, units / float(level), float(dither), np.uint64(point), indices, values)
            assert np.array_equal(values[:count], x[indices[:count]])
            taken.append(indices[:count].tolist())
        assert taken[0] == taken[1]
        assert certain <= set(taken[0])
        measure[taken[0]] += high - low
        sizes.add(len(taken[0]) - len(certain))
    measure[list(certain)] = 0
    # a probability is wrong by one unit where rounding moves the product of two floats across an integer
    assert np.abs(measure - expected).max() <= 1
    assert sizes <= {math.floor(sum(expected) / units), math.ceil(sum(expected) / units)}


def test_the_dither_makes_the_units_exact_on_average():
    x = readonly(np.array([1.0, 1e-12, 3e-13, 2.5e-14], np.float32))
    scale = 2.0**43
    total = np.zeros(4)
    for step in range(4096):
        total += [math.floor(Fraction(float(v)) * Fraction(scale) + Fraction(step, 4096)) for v in x]
    assert total / 4096 == pytest.approx(x.astype(float) * scale, abs=1 / 4096)
    # the kernel does the same: an entry of 0.22 units is drawn from points below one unit, for 22 % of the dithers
    drawn = 0
    for step in range(256):
        indices, values = np.empty(4 + 32, np.uint32), np.empty(4 + 32, np.float32)
        count = waterfilling._draw(x[3:], np.float32(1), scale, step / 256, np.uint64(2**43 - 1), indices, values)
        drawn += count
    assert drawn == math.floor(2.5e-14 * scale * 256 + 0.5)


# decoded values


@pytest.mark.parametrize("budget", [None, 1, 7.5, 0.3, 1e6])
@pytest.mark.parametrize("shape", [(), (1,), (0,), (7,), (100, 37), (16, 8, 3, 3), (40_001,)])
def test_a_reader_in_plain_python_finds_the_same(shape, budget):
    codec = Entrywise(budget=budget)
    for x in (np.asarray(normal(*shape)), heavy(math.prod(shape)).reshape(shape), np.zeros(shape, np.float32)):
        payload = codec.encode(x, rng(3))
        assert payload.nbytes <= codec.max_nbytes(shape)
        y = codec.decode(Payload.from_bytes(payload.to_bytes()))
        assert y.shape == shape
        if not x.size:
            continue
        level, indices, values = read(payload.to_bytes(), x.size)
        expected = np.zeros(x.size, np.float32)
        expected[indices] = values
        assert np.array_equal(y.reshape(-1), expected)
        assert np.array_equal(codec.support(payload), indices)
        # a sent value is x itself above the level, else the level with the sign of x
        sent = x.reshape(-1)[indices]
        exact = np.abs(sent) > level
        assert np.array_equal(values[exact], sent[exact])
        assert np.array_equal(values[~exact], np.copysign(np.float32(level), sent[~exact]))
        assert set(np.flatnonzero(np.abs(x) > level)) <= set(indices)


@pytest.mark.parametrize("budget", [1, 2, 16, 100, 1000])
def test_an_integral_budget_makes_messages_of_one_size_never_empty(budget):
    for x in (normal(20_000), heavy(20_000)):
        codec = Entrywise(budget=budget)
        counts = {codec.support(codec.encode(x, rng(seed))).size for seed in range(100)}
        assert counts <= {budget - 1, budget}
        assert max(counts) == budget
        assert min(counts) >= 1


def test_a_budget_of_all_entries_sends_them_as_they_are():
    x = heavy(1000)
    codec = Entrywise(budget=500)
    payload = codec.encode(x, rng())
    assert np.array_equal(codec.decode(payload), x)
    assert codec.omega(x) == 0


@pytest.mark.sweep
@pytest.mark.parametrize("budget", [1, 3, 20.5, 0.2])
def test_the_mean_of_decodes_is_x_and_omega_is_the_least_there_is(budget):
    """Check that the mean squared error is that of theory, and that the mean error is 0.

    The mean error is taken over each third of the coordinates by magnitude, and over all coordinates. Every third with
    values other than 0 has at least 25 expected draws; with fewer, the standard error could not be estimated.
    """
    for x in (normal(200), heavy(300), np.float32(0.9) ** np.arange(60, dtype=np.float32)):
        codec = Entrywise(budget=budget)
        generator = rng(9)
        decoded = np.array([codec.decode(codec.encode(x, generator)).astype(float) for _ in range(3000)])
        ranks = np.abs(x).argsort().argsort()
        classes = [np.sign(x) * (ranks * 3 // x.size == third) for third in range(3)] + [np.sign(x), x]
        projected = (decoded - x) @ np.array(classes, float).T
        bound = 4 * projected.std(axis=0, ddof=1) / math.sqrt(len(decoded)) + 1e-6 * np.abs(x).sum()
        assert np.all(np.abs(projected.mean(axis=0)) <= bound)
        entries = budget * x.size if budget < 1 else budget
        theory = theoretical_omega(x, entries)
        omega = np.mean(np.sum((decoded - x) ** 2, axis=1)) / np.sum(x.astype(float) ** 2)
        assert omega == pytest.approx(theory, rel=0.05, abs=1e-6)
        assert codec.omega(x) == pytest.approx(theory, rel=1e-5, abs=1e-6)


def test_entries_a_ten_thousandth_of_the_largest_lose_nothing_in_sum():
    """Check that the decoded sum of a million small entries is their sum within one level: the drawn points lie at distance
    one on the line of probabilities.
    """
    x = (1e-4 * (1 + 0.5 * rng().random(1_000_000))).astype(np.float32)
    x[::10_000] = 1
    codec = Entrywise(budget=2000)
    for seed in range(5):
        payload = codec.encode(x, rng(seed))
        level = read(payload.to_bytes(), x.size)[0]
        small = x < 0.5
        assert abs(math.fsum(codec.decode(payload)[small]) - math.fsum(x[small])) <= level * (1 + 1e-6)


def test_one_level_qsgd_and_terngrad_are_special_budgets():
    g = normal(500).astype(float)
    x = g.astype(np.float32)
    norm, top, total = np.linalg.norm(g), np.abs(g).max(), np.abs(g).sum()
    assert Entrywise(budget=total / norm).omega(x) == pytest.approx(norm * total / norm**2 - 1, rel=1e-5)
    assert Entrywise(budget=total / top).omega(x) == pytest.approx(top * total / norm**2 - 1, rel=1e-5)


@pytest.mark.parametrize("scale", [1e-41, 1e-30, 1e30, 1e36])
def test_scale_changes_nothing_but_the_scale(scale):
    x = heavy(5000).clip(-50, 50)
    scaled = (x.astype(float) * scale).astype(np.float32)
    codec = Entrywise(budget=100)
    one, other = (codec.encode(each, rng(2)) for each in (x, scaled))
    ratio = read(other.to_bytes(), 5000)[0] / scale / read(one.to_bytes(), 5000)[0]
    assert ratio == pytest.approx(1, rel=1e-2 if scale < 1e-37 else 1e-6)
    if scale > 1e-37:
        shared = np.intersect1d(codec.support(one), codec.support(other))
        assert shared.size >= 95  # the level is rounded differently, so that points shift


def test_a_level_beyond_float32_saturates():
    x = np.full(1000, LARGEST, np.float32)
    codec = Entrywise(budget=10)
    y = codec.decode(codec.encode(x, rng()))
    assert np.isfinite(y).all()
    assert np.count_nonzero(y) in (9, 10)


# errors, costs, feedback


def test_the_error_is_what_the_payload_lacks_and_only_the_support_is_touched():
    x = heavy(20_000)
    x[::3] = -0.0
    codec = get_codec("entrywise")
    payload = codec.encode(x, rng(1))
    decoded, support = codec.decode(payload), codec.support(payload)
    expected = x.copy()
    expected[support] -= decoded[support]
    inside, apart = x.copy(), np.empty_like(x)
    assert codec.encode(inside, rng(1), error=inside) == payload
    assert codec.encode(x, rng(1), error=apart) == payload
    for error in (inside, apart):
        assert np.array_equal(error.view(np.uint32), expected.view(np.uint32))
    out = np.full(x.shape, -0.0, np.float32)
    codec.decode_add(payload, out, 0.25)
    assert np.signbit(np.delete(out, support)).all()


def test_an_entry_costs_an_index_and_a_sign():
    size, sent = 1 << 18, 1 << 14
    payload = get_codec("entrywise").encode(normal(size), rng())
    theory = log2_binomial(size, sent) / 8 + sent / 8
    head = 12 + 4 + 3 * 4 + 5 + 5 + 9
    assert theory <= payload.nbytes <= 1.02 * theory + head
    assert payload.nbytes * 8 / size < 0.41


def test_certain_entries_cost_32_bits_more():
    x = np.concatenate([normal(50_000), 1e6 * normal(500)]).astype(np.float32)
    codec = Entrywise(budget=1000)
    payload = codec.encode(x, rng())
    certain = np.count_nonzero(np.abs(x) > read(payload.to_bytes(), x.size)[0])
    assert certain > 490
    theory = (log2_binomial(x.size, 1000) + log2_binomial(1000, certain) + (1000 - certain) + 32 * certain) / 8
    assert payload.nbytes <= 1.02 * theory + 12 + 4 + 3 * 4 + 5 + 5 + 9


@pytest.mark.parametrize("index", [0, 512, 39_999])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named(index, value):
    x = heavy(40_000)
    x[index] = value
    for budget in (1, 0.1, 40_000):
        with pytest.raises(NonFiniteGradientError) as caught:
            Entrywise(budget=budget).encode(x, rng())
        assert caught.value.index == index


def test_the_contractive_form_decodes_the_best_multiple():
    x = normal(3000)
    codec = get_codec("entrywise")
    form = codec.contractive()
    for seed in range(5):
        q = codec.decode(codec.encode(x, rng(seed))).astype(float)
        y = form.decode(form.encode(x, rng(seed)))
        assert np.abs(y - q * (x @ q) / (q @ q)).max() <= 1e-5 * np.abs(q).max()
    generator = rng()
    residual, norms = np.zeros(500, np.float32), []
    for _ in range(500):
        residual += generator.standard_normal(500).astype(np.float32)
        form.encode(residual, generator, error=residual)
        norms.append(float(np.linalg.norm(residual)))
    assert max(norms[250:]) <= 1.3 * max(norms[:250])


def test_a_sparse_budget_needs_no_dense_temporary():
    x = normal(1 << 20)
    codec = Entrywise(budget=1000)
    payload, out = codec.encode(x, rng()), np.zeros_like(x)
    codec.decode_add(payload, out)
    for work in (lambda: codec.encode(x, rng()), lambda: codec.decode_add(payload, out)):
        tracemalloc.start()
        work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 0.1 * x.nbytes


# invalid bytes


def test_every_truncation_is_refused():
    codec = Entrywise(budget=40)
    data = codec.encode(heavy(1000), rng()).to_bytes()
    for length in range(12, len(data)):
        with pytest.raises(PayloadError):
            codec.decode(Payload.from_bytes(data[:length]))
    with pytest.raises(PayloadError):
        codec.decode(Payload.from_bytes(data + bytes(4)))


@pytest.mark.parametrize("level", [-1.0, np.nan, np.inf, -0.5])
def test_a_level_that_is_none_is_refused(level):
    codec = Entrywise(budget=40)
    data = bytearray(codec.encode(heavy(1000), rng()).to_bytes())
    data[12:16] = struct.pack("<f", level)
    with pytest.raises(PayloadError, match="level"):
        codec.decode(Payload.from_bytes(data))


@settings(max_examples=500)
@given(st.lists(st.tuples(st.integers(12, 400), st.integers(0, 255)), min_size=1, max_size=4))
def test_altered_bytes_are_refused_or_decode_to_some_array(changes):
    codec = Entrywise(budget=60)
    data = bytearray(codec.encode(heavy(1500), rng()).to_bytes())
    for index, byte in changes:
        data[min(index, len(data) - 1)] = byte
    try:
        y = codec.decode(Payload.from_bytes(data))
    except PayloadError:
        return
    assert y.shape == (1500,)


@pytest.mark.parametrize("spec", ["entrywise", "entrywise:budget=40", "contractive(entrywise)"])
def test_golden_bytes(spec):
    names = {"entrywise": "entrywise", "entrywise:budget=40": "entrywise-40", "contractive(entrywise)": "contractive-entrywise"}
    check_golden(names[spec], spec, read_golden)
