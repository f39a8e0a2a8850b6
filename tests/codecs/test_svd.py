"""Spectral ATOMO compared with numpy.linalg.svd, an independent water-filling, and an independent decoder.

Seeds are fixed, so a test passes always or never. Each bound of 4 standard errors would fail a correct program for a share of
6e-5 of the seeds.
"""

from __future__ import annotations

import dataclasses
import math
import os
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.svd import Svd
from psnode.errors import CodecSpecError, NonFiniteGradientError, PayloadError


def gaussian(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def of_spectrum(m: int, n: int, values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Return an m x n matrix with the singular values `values`."""
    rng = np.random.default_rng(seed)
    u = np.linalg.qr(rng.standard_normal((m, len(values))))[0]
    v = np.linalg.qr(rng.standard_normal((n, len(values))))[0]
    return ((u * values) @ v.T).astype(np.float32)


def decays(m: int = 24, n: int = 40, seed: int = 0) -> np.ndarray:
    return of_spectrum(m, n, 0.8 ** np.arange(min(m, n)), seed)


def encode(codec: Svd, x: np.ndarray, seed: int = 0) -> Payload:
    return codec.encode(x, np.random.default_rng(seed))


def read(payload: Payload) -> tuple[int, int, np.ndarray]:
    """Return (split, terms, values) of a payload, read from the bytes by the table of the payload format. `split` is the
    number of row dimensions.
    """
    data = payload.to_bytes()
    ndim = data[2]
    body = data[8 + 4 * ndim :]
    length, split, terms = struct.unpack_from("<IHH", body)
    assert length == 4
    return split, terms, np.frombuffer(body, "<f4", offset=8)


def terms_of(payload: Payload) -> int:
    return read(payload)[1]


def decoded_by_numpy(payload: Payload) -> np.ndarray:
    """Return the matrix of a payload: NumPy's float32 products, added in float32 in the order of the terms."""
    split, terms, values = read(payload)
    if split == 0:
        return values.reshape(payload.shape)
    m, n = math.prod(payload.shape[:split]), math.prod(payload.shape[split:])
    total = np.zeros((m, n), np.float32)
    for k, pair in enumerate(values.reshape(terms, m + n)):
        product = np.outer(pair[:m], pair[m:])
        total = product if k == 0 else total + product
    return total.reshape(payload.shape)


def theoretical_omega(x: np.ndarray, budget: float) -> float:
    """Return the theoretical omega, (sum lambda^2 / p - ||x||^2) / ||x||^2, for the singular values lambda of x. The
    probabilities are p = min(1, c lambda), with c found by bisection.
    """
    lam = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    low, high = 0.0, 1 / lam[-1]
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if np.minimum(1, c * lam).sum() < budget else (low, c)
    return float(np.sum(lam**2 / np.minimum(1, high * lam)) / np.sum(lam**2) - 1)


# configuration


def test_the_bare_name_has_the_paper_s_rank():
    codec = get_codec("svd")
    assert codec == Svd(rank=3, method="exact", sample=True, cover=False)
    assert codec.unbiased
    assert codec.shaped
    assert not codec.lossless
    assert not codec.linear


@pytest.mark.parametrize("spec", ["svd", "svd:rank=1", "svd:rank=2.5", "svd:rank=4,method=exact", "svd:sample=false"])
def test_a_codec_is_what_its_repr_says(spec):
    codec = get_codec(spec)
    assert get_codec(repr(codec)) == codec
    assert get_codec(repr(codec.contractive())) == codec.contractive()


@pytest.mark.parametrize(
    "spec",
    [
        *(f"svd:rank={rank}" for rank in ("0", "0.5", "-1", "nan", "inf", "99999", "three", "")),
        *("svd:method=fast", "svd:method=", "svd:sample=maybe", "svd:levels=3"),
    ],
)
def test_what_cannot_be_configured_is_refused(spec):
    with pytest.raises(CodecSpecError, match="svd"):
        get_codec(spec)


# decoded values


SHAPES = [(), (1,), (7,), (300,), (0,), (3, 0, 2), (1, 1), (1, 500), (500, 1), (2, 500), (6, 6), (30, 20), (20, 30)]
SHAPES += [(16, 8, 3, 3), (3, 3, 8, 16), (1, 1, 30, 20), (2, 3, 4, 5, 6), (1,) * 8]


@pytest.mark.parametrize("spec", ["svd:rank=1", "svd:rank=2.5", "svd:rank=3", "svd:rank=3,sample=false"])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape_is_decoded_as_an_independent_decoder_does(shape, spec):
    codec = get_codec(spec)
    x = gaussian(*shape)
    payload = encode(codec, x)
    y = codec.decode(Payload.from_bytes(payload.to_bytes()))
    assert y.shape == x.shape
    assert y.dtype == np.float32
    assert payload.nbytes == len(payload.to_bytes()) <= codec.max_nbytes(shape)
    if x.size:
        assert np.array_equal(y, decoded_by_numpy(payload))


@pytest.mark.parametrize("shape", [(), (1,), (300,), (1, 500), (2, 500), (6, 6)])
def test_what_terms_would_not_make_smaller_travels_as_it_is(shape):
    codec = get_codec("svd:rank=3")
    x = gaussian(*shape)
    payload = encode(codec, x)
    assert np.array_equal(codec.decode(payload), x)
    assert payload.nbytes == 4 * x.size + 8 + 4 * len(shape) + 8


@pytest.mark.parametrize(("shape", "rank"), [((30, 80), 1), ((80, 30), 3), ((10, 4, 3, 3), 2)])
def test_a_matrix_within_the_budget_is_exact(shape, rank):
    m = shape[0]
    factors = gaussian(m, rank, seed=1).astype(float), gaussian(rank, math.prod(shape[1:]), seed=2).astype(float)
    x = (factors[0] @ factors[1]).astype(np.float32).reshape(shape)
    for budget in (rank, rank + 0.5, rank + 2):
        codec = Svd(rank=budget)
        payloads = {encode(codec, x, seed).to_bytes() for seed in range(5)}
        assert len(payloads) == 1
        payload = Payload.from_bytes(payloads.pop())
        if read(payload)[0]:
            assert terms_of(payload) == rank
        assert np.abs(codec.decode(payload) - x).max() <= 1e-6 * np.abs(x).max()


def test_a_zero_matrix_is_no_terms_at_all():
    codec = get_codec("svd")
    payload = encode(codec, np.zeros((30, 40), np.float32))
    assert payload.nbytes == 16 + 8
    y = np.full((30, 40), 7, np.float32)
    codec.decode(payload, y)
    assert not y.any()
    codec.decode_add(payload, y)
    assert not y.any()


@pytest.mark.parametrize("scale", [1e-41, 1e-30, 1e-10, 1e10, 1e30, 1e37])
def test_scale_changes_nothing_but_the_scale(scale):
    codec = get_codec("svd:rank=2")
    x = decays()
    reference = codec.decode(encode(codec, x, 3)).astype(float)
    y = codec.decode(encode(codec, (x.astype(float) * scale).astype(np.float32), 3)).astype(float) / scale
    assert np.abs(y - reference).max() <= (1e-2 if scale < 1e-37 else 1e-5) * np.abs(reference).max()


@pytest.mark.parametrize("spec", ["svd", "svd:rank=1", "svd:sample=false", "svd:method=randomised"])
@pytest.mark.parametrize("kind", ["signs", "one-hot", "diagonal", "equal"])
def test_the_largest_floats_decode_to_finite_ones(kind, spec):
    largest = np.finfo(np.float32).max
    x = {
        "signs": np.sign(gaussian(40, 60)),
        "one-hot": np.eye(40, 60, 7),
        "diagonal": np.eye(40, 60),
        "equal": np.ones((40, 60)),
    }[kind]
    if kind == "one-hot":
        x[1:] = 0
    codec = get_codec(spec)
    for seed in range(5):
        y = codec.decode(encode(codec, (x * largest).astype(np.float32), seed))
        assert np.isfinite(y).all()
        if kind in ("one-hot", "equal"):
            assert np.abs(y - x * largest).max() <= 1e-5 * largest


def test_what_fits_into_float32_is_not_scaled_down():
    x = (1e36 * decays() / np.abs(decays()).max()).astype(np.float32)
    codec = Svd(rank=2)
    small = codec.decode(encode(codec, decays(), 3)).astype(float)
    large = codec.decode(encode(codec, x, 3)).astype(float)
    assert np.abs(large * np.abs(decays()).max() / 1e36 - small).max() <= 1e-5 * np.abs(small).max()


def test_dead_rows_and_columns_stay_exactly_zero():
    x = gaussian(64, 90)
    x[::3] = 0
    x[:, ::2] = 0
    x[1] = -0.0
    for seed in range(5):
        y = get_codec("svd").decode(encode(get_codec("svd"), x, seed))
        assert not y[::3].any()
        assert not y[:, ::2].any()
        assert not y[1].any()


@pytest.mark.parametrize("weight", [1.0, -1.0, 0.25, 1 / 3])
@pytest.mark.parametrize("shape", [(40, 60), (5, 3000), (3000, 5), (7,)])
def test_decode_add_is_a_float32_product_and_sum(shape, weight):
    codec = get_codec("svd:rank=2")
    payload = encode(codec, gaussian(*shape))
    out = gaussian(*shape, seed=9)
    expected = out + np.float32(weight) * decoded_by_numpy(payload)
    codec.decode_add(payload, out, weight)
    assert np.array_equal(out, expected)


def test_decode_add_makes_no_dense_temporary():
    codec = get_codec("svd")
    payload = encode(codec, decays(512, 2048))
    out = np.zeros((512, 2048), np.float32)
    codec.decode_add(payload, out)
    tracemalloc.start()
    codec.decode_add(payload, out)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.05 * out.nbytes


def test_another_process_without_vector_instructions_decodes_the_same():
    codec = get_codec("svd:rank=5")
    payload = encode(codec, gaussian(60, 1500))
    program = (
        "import sys; from psnode.codecs import Payload, get_codec;"
        "sys.stdout.buffer.write(get_codec('svd').decode(Payload.from_bytes(sys.stdin.buffer.read())).tobytes())"
    )
    environment = {"PYTHONHASHSEED": "77", "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    result = subprocess.run(
        [sys.executable, "-c", program], input=payload.to_bytes(), env=os.environ | environment, capture_output=True, check=True
    )
    assert result.stdout == codec.decode(payload).tobytes()


def test_encode_leaves_x_alone_and_repeats_itself():
    x = gaussian(48, 16, 3, 3)
    before = x.copy()
    codec = get_codec("svd")
    assert encode(codec, x, 5) == encode(codec, x, 5)
    assert np.array_equal(x, before)
    assert encode(codec, np.asfortranarray(x), 5) == encode(codec, x, 5)
    assert encode(codec, x, 5) != encode(codec, x, 6)


@pytest.mark.parametrize("shape", [(40, 60), (7,)])
def test_the_error_is_what_the_payload_lacks(shape):
    codec = get_codec("svd:rank=2")
    x = gaussian(*shape)
    error = np.empty_like(x)
    payload = codec.encode(x, np.random.default_rng(1), error=error)
    assert np.array_equal(error, x - codec.decode(payload))
    in_place = x.copy()
    assert codec.encode(in_place, np.random.default_rng(1), error=in_place) == payload
    assert np.array_equal(in_place, error)


@pytest.mark.parametrize(("shape", "index"), [((5,), 4), ((40, 60), 1234), ((16, 8, 3, 3), 0)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named(shape, index, value):
    x = gaussian(*shape)
    x.flat[index] = value
    with pytest.raises(NonFiniteGradientError) as caught:
        encode(get_codec("svd"), x)
    assert caught.value.index == index


# the distribution of decoded arrays


@pytest.mark.sweep
@pytest.mark.parametrize(("rank", "x"), [(1, decays()), (2.5, decays()), (3, decays(40, 24)), (3, gaussian(12, 4, 3, 3))])
def test_the_mean_of_decodes_is_x(rank, x):
    """Check that the mean error is 0, in sums over classes of coordinates (largest, middle, smallest, a row, a column, all)
    and along singular pairs.
    """
    codec = Svd(rank=rank)
    rng = np.random.default_rng(123)
    matrix = x.reshape(len(x), -1).astype(float)
    u, _, vt = np.linalg.svd(matrix, full_matrices=False)
    ranks = np.abs(matrix).ravel().argsort().argsort().reshape(matrix.shape)
    signs = np.sign(matrix)
    third = matrix.size // 3
    tests = [signs * (ranks < third), signs * (ranks >= 2 * third), signs * ((ranks >= third) & (ranks < 2 * third)), signs]
    for row, column in ((0, 1), (5, 7)):
        tests += [np.zeros_like(matrix), np.zeros_like(matrix)]
        tests[-2][row], tests[-1][:, column] = signs[row], signs[:, column]
    tests = np.array(tests + [np.outer(u[:, i], vt[i]) for i in range(len(vt))]).reshape(-1, matrix.size)
    samples = np.array([tests @ (codec.decode(codec.encode(x, rng)).ravel().astype(float) - x.ravel()) for _ in range(2000)])
    deviation = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(axis=0)) <= 4 * deviation + 1e-6 * np.abs(x).max())


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("rank", "x"), [(1, decays()), (2, decays()), (2.5, decays()), (3, gaussian(40, 60)), (4, gaussian(60, 40))]
)
def test_omega_is_that_of_the_optimal_probabilities(rank, x):
    codec = Svd(rank=rank)
    rng = np.random.default_rng(7)
    energy = np.sum(x.astype(float) ** 2)
    measured = np.mean([np.sum((codec.decode(codec.encode(x, rng)).astype(float) - x) ** 2) for _ in range(2000)]) / energy
    theory = theoretical_omega(x, rank)
    assert measured == pytest.approx(theory, rel=0.05)
    assert codec.omega(x) == pytest.approx(theory, rel=1e-6)


def test_omega_of_what_is_sent_exactly_is_zero():
    assert get_codec("svd").omega(gaussian(300)) == 0
    assert get_codec("svd").omega(np.zeros((30, 40), np.float32)) == 0
    assert get_codec("svd").omega(of_spectrum(30, 40, np.array([3.0, 2.0, 1.0]))) == 0


# cost


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize(("shape", "rows_and_columns"), [((512, 64, 3, 3), 1088), ((256, 256), 512), ((1000, 300), 1300)])
def test_a_message_takes_32_bits_for_every_row_and_column_of_a_term(shape, rows_and_columns, rank):
    codec = Svd(rank=rank)
    x = gaussian(*shape)
    theory = 4 * rank * rows_and_columns
    sizes = {encode(codec, x, seed).nbytes for seed in range(3)}
    assert sizes == {codec.max_nbytes(shape)}
    header = 8 + 4 * len(shape)
    assert theory <= sizes.pop() <= 1.02 * theory + header


def test_a_fractional_rank_is_met_on_average():
    codec = Svd(rank=2.3)
    x = gaussian(20, 30)
    terms = [terms_of(encode(codec, x, seed)) for seed in range(1000)]
    assert set(terms) == {2, 3}
    assert abs(np.mean(terms) - 2.3) <= 4 * math.sqrt(0.3 * 0.7 / 1000)
    assert max(encode(codec, x, seed).nbytes for seed in range(20)) == codec.max_nbytes((20, 30))


@pytest.mark.parametrize("shape", [(30, 600), (600, 30)])
def test_both_factors_of_a_term_have_entries_of_one_size(shape):
    _, terms, values = read(encode(Svd(rank=4), gaussian(*shape)))
    for pair in values.reshape(terms, 630).astype(float):
        left, right = pair[: shape[0]], pair[shape[0] :]
        assert np.sqrt(np.mean(left**2)) == pytest.approx(np.sqrt(np.mean(right**2)), rel=1e-5)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_shape_is_expanded(shape):
    for rank in (1, 3, 30):
        assert Svd(rank=rank).max_nbytes(shape) <= 4 * math.prod(shape) + 8 + 4 * len(shape) + 8


# faults of the reference program


def test_budget_left_by_certain_terms_is_spent():
    x = of_spectrum(30, 40, np.array([100.0] + [1.0] * 29))
    assert {terms_of(encode(Svd(rank=3), x, seed)) for seed in range(50)} == {3}


def test_one_of_many_equal_terms_is_neither_empty_nor_drawn_twice():
    x = np.zeros((16, 24), np.float32)
    np.fill_diagonal(x, 1.0)
    codec = Svd(rank=1)
    rng = np.random.default_rng(3)
    payloads = [codec.encode(x, rng) for _ in range(2000)]
    assert {terms_of(payload) for payload in payloads} == {1}
    total = sum(float(np.trace(codec.decode(payload))) for payload in payloads) / len(payloads)
    # the one sent term is 16 u v^T, with trace 16: no variance; independent draws, repeated while empty, would give about 25
    assert total == pytest.approx(16, rel=1e-5)


def test_rank_zero_is_refused_with_the_bound():
    with pytest.raises(CodecSpecError, match=r"rank=0 must be in \[1, "):
        Svd(rank=0)


def test_a_vector_is_not_expanded():
    payload = encode(get_codec("svd:rank=1"), gaussian(1000))
    assert payload.nbytes == 4000 + 12 + 8


def test_a_payload_is_a_header_and_floats_and_no_more():
    payload = encode(get_codec("svd:rank=3"), gaussian(100, 200))
    assert payload.nbytes == 4 * 3 * 300 + 16 + 8


# the contractive form


def test_the_contractive_form_sends_the_largest_terms_unscaled():
    x = gaussian(30, 50)
    u, values, vt = np.linalg.svd(x.astype(float), full_matrices=False)
    for rank, kept in ((1, 1), (3, 3), (3.7, 3)):
        codec = Svd(rank=rank).contractive()
        assert not codec.unbiased
        best = (u[:, :kept] * values[:kept]) @ vt[:kept]
        y = codec.decode(encode(codec, x))
        assert np.abs(y - best).max() <= 1e-6 * np.abs(x).max()
        assert codec.omega(x) == pytest.approx(np.sum(values[kept:] ** 2) / np.sum(values**2), rel=1e-6)
        assert codec.contractive() is codec
        assert dataclasses.replace(codec, sample=True) == Svd(rank=rank)


@pytest.mark.parametrize("shape", [(40, 60), (24, 8, 3, 3)])
@pytest.mark.parametrize("rank", [1, 3])
def test_error_feedback_stays_bounded_and_loses_nothing(shape, rank):
    codec = Svd(rank=rank).contractive()
    short = min(shape[0], math.prod(shape[1:]))
    rng = np.random.default_rng(0)
    residual = np.zeros(shape, np.float32)
    sent, total = np.zeros(shape), np.zeros(shape)
    largest = 0.0
    for _ in range(500):
        g = rng.standard_normal(shape).astype(np.float32)
        pushed = g + residual
        payload = codec.encode(pushed, rng, error=residual)
        sent += codec.decode(payload)
        total += g
        largest = max(largest, float(np.linalg.norm(residual)))
    # ||e'|| <= r (||e|| + ||g||) with r^2 = 1 - rank / short has the fixed point r / (1 - r) ||g||; the norms of these gradients
    # are within 20 % of sqrt(d)
    shrink = math.sqrt(1 - rank / short)
    assert largest <= 1.2 * shrink / (1 - shrink) * math.sqrt(math.prod(shape))
    assert np.abs(sent + residual - total).max() < 1e-3


# invalid bytes


def test_bodies_that_no_encoder_writes_are_refused():
    codec = get_codec("svd")
    good = encode(codec, gaussian(30, 40)).to_bytes()
    header, body = good[:16], good[16:]
    bad = {
        "empty": b"",
        "cut inside the length": body[:2],
        "cut inside the side information": body[:6],
        "without values": body[:8],
        "one value short": body[:-4],
        "one byte short": body[:-1],
        "one value too many": body + b"\0\0\0\0",
        "side information too long": struct.pack("<IHHI", 8, 1, 3, 0) + body[8:],
        "side information too short": struct.pack("<IHH", 2, 1, 0) + body[8:],
        "length beyond the body": struct.pack("<IHH", 2**32 - 1, 1, 3) + body[8:],
        "no split but terms": struct.pack("<IHH", 4, 0, 3) + body[8:],
        "no split, values of the terms": struct.pack("<IHH", 4, 0, 0) + body[8:],
        "split behind the last dimension": struct.pack("<IHH", 4, 2, 3) + body[8:],
        "split far outside": struct.pack("<IHH", 4, 65535, 3) + body[8:],
        "more terms than values": struct.pack("<IHH", 4, 1, 4) + body[8:],
        "more terms than the short side": struct.pack("<IHH", 4, 1, 31) + bytes(4 * 31 * 70),
        "NaN in a factor": body[:8] + struct.pack("<f", np.nan) + body[12:],
        "infinity in a factor": body[:-4] + struct.pack("<f", -np.inf),
        "65535 terms": struct.pack("<IHH", 4, 1, 65535) + body[8:],
    }
    for name, garbage in bad.items():
        payload = Payload.from_bytes(header + garbage)
        out = np.ones((30, 40), np.float32)
        with pytest.raises(PayloadError):
            codec.decode(payload)
        with pytest.raises(PayloadError):
            codec.decode_add(payload, out)
        assert np.all(out == 1), name


def test_changed_bytes_give_an_array_or_a_payload_error():
    codec = get_codec("svd")
    rng = np.random.default_rng(5)
    good = np.frombuffer(encode(codec, gaussian(12, 20)).to_bytes(), np.uint8)
    refused = 0
    with np.errstate(all="ignore"):
        for _ in range(3000):
            bytes_ = good.copy()
            for _ in range(rng.integers(1, 4)):
                # half of the changes hit the header and side information
                bytes_[rng.integers(0, 24 if rng.random() < 0.5 else bytes_.size)] = rng.integers(256)
            bytes_ = bytes_[: rng.integers(bytes_.size)] if rng.random() < 0.1 else bytes_
            try:
                payload = Payload.from_bytes(bytes_.tobytes())
                if payload.size < 10**6:
                    assert codec.decode(payload).shape == payload.shape
            except PayloadError:
                refused += 1
    assert refused > 500


@pytest.mark.long
def test_the_number_of_blas_threads_does_not_change_the_bytes():
    program = (
        "import sys; import numpy as np; from psnode.codecs import get_codec;"
        "x = np.random.default_rng(3).standard_normal((300, 900)).astype(np.float32);"
        "sys.stdout.buffer.write(get_codec(sys.argv[1]).encode(x, np.random.default_rng(4)).to_bytes())"
    )
    for spec in ("svd", "svd:method=randomised"):
        one, two = (
            subprocess.run(
                [sys.executable, "-c", program, spec],
                env=os.environ | {"OPENBLAS_NUM_THREADS": threads},
                capture_output=True,
                check=True,
            ).stdout
            for threads in "12"
        )
        assert one == two


# before a quantiser


def test_quantised_factors_stay_unbiased():
    x = decays()
    codec = get_codec("svd:rank=2+qsgd:levels=7,bucket=64")
    assert codec.unbiased
    rng = np.random.default_rng(21)
    u, _, vt = np.linalg.svd(x.astype(float), full_matrices=False)
    tests = np.array([np.sign(x), *(np.outer(u[:, i], vt[i]) for i in range(len(vt)))], dtype=float).reshape(-1, x.size)
    samples = np.array([tests @ (codec.decode(codec.encode(x, rng)).astype(float) - x).ravel() for _ in range(2000)])
    deviation = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(axis=0)) <= 4 * deviation)


def test_eight_bits_an_entry_of_a_factor_cost_a_quarter_and_next_to_nothing_else():
    x = decays(40, 600)
    plain, quantised = get_codec("svd"), get_codec("svd+qsgd:levels=127")
    assert encode(quantised, x).nbytes <= 0.26 * encode(plain, x).nbytes
    rng = np.random.default_rng(22)
    energy = np.sum(x.astype(float) ** 2)
    measured = np.mean([np.sum((quantised.decode(quantised.encode(x, rng)).astype(float) - x) ** 2) for _ in range(2000)])
    assert measured / energy == pytest.approx(theoretical_omega(x, 3), rel=0.05)


@pytest.mark.parametrize("shape", [(), (7,), (0, 3), (6, 6), (30, 20), (16, 8, 3, 3)])
def test_a_chain_takes_any_shape(shape):
    codec = get_codec("svd:rank=2+qsgd:levels=15")
    x = gaussian(*shape)
    payload = encode(codec, x)
    assert payload.nbytes <= codec.max_nbytes(shape)
    y = codec.decode(Payload.from_bytes(payload.to_bytes()))
    assert y.shape == shape
    out = np.ones_like(x)
    codec.decode_add(payload, out, 0.5)
    assert np.array_equal(out, 1 + np.float32(0.5) * y)
    zeros = np.zeros_like(x)
    assert not codec.decode(encode(codec, zeros)).any()


def test_the_contractive_form_of_a_chain_stays_bounded():
    codec = get_codec("svd:rank=3+qsgd:levels=15").contractive()
    assert get_codec(repr(codec)) == codec
    rng = np.random.default_rng(0)
    residual = np.zeros((24, 40), np.float32)
    norms = []
    for _ in range(500):
        g = rng.standard_normal((24, 40)).astype(np.float32)
        codec.encode(g + residual, rng, error=residual)
        norms.append(float(np.linalg.norm(residual)))
    assert max(norms[250:]) <= 1.2 * max(norms[:250])


@pytest.mark.parametrize("spec", ["svd+qsgd:levels=1", "svd:sample=false+qsgd:levels=1", "svd+fp16"])
def test_quantised_factors_of_very_large_matrices_stay_within_float32(spec):
    codec = get_codec(spec)
    for scale in (1e34, 1e36, 1e38):
        x = np.clip(np.random.default_rng(1).standard_normal((60, 70)), -3, 3).astype(np.float32) * np.float32(scale)
        for seed in range(5):
            payload = codec.encode(x, np.random.default_rng(seed))
            y, added = codec.decode(payload), np.zeros_like(x)
            codec.decode_add(payload, added)
            assert np.isfinite(y).all()
            np.testing.assert_array_equal(added, y)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("spec", ["svd", "topk", "svd+fp16", "topk+bf16"])
def test_values_that_are_not_finite_are_refused(spec, value):
    codec = get_codec(spec)
    x = np.random.default_rng(1).standard_normal((60, 70)).astype(np.float32)
    data = bytearray(codec.encode(x, np.random.default_rng(1)).to_bytes())
    data[-4:] = np.array([value], np.float32).tobytes()
    if "16" in spec:
        data[-2:] = b"\x80\x7f" if "bf16" in spec else b"\x00\x7c"
    with pytest.raises(PayloadError, match="not finite"):
        codec.decode(Payload.from_bytes(bytes(data)))
