"""lss compared with Lloyd-Max theory, all partitions by brute force, the allocation of buckets, and a decoder in NumPy."""

from __future__ import annotations

import itertools
import struct

import numpy as np
import pytest
from scipy.cluster.vq import kmeans2

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.codecs.sketches.budget import optimal, weighted
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import gaussian, recorded, student
from tests.codecs.golden_reader import header, unpack_planes
from tests.codecs.golden_store import check_golden
from tests.codecs.threefry_oracle import stage_words

KEY = Key.derive(4)


def read_lss(data: bytes) -> np.ndarray:
    """Return the values of a payload of lss, from the byte table alone."""
    _, shape, body = header(data)
    size = int(np.prod(shape))
    last, buckets = struct.unpack_from("<II", body)
    start, k = 8, last + 1
    sizes, words = np.zeros(0, int), (0, 0)
    if buckets:
        words = struct.unpack_from("<QQ", body, 8)
        sizes = np.frombuffer(body, "<u4", k, 24).astype(int)
        start = 24 + 4 * k
    means = np.frombuffer(body, "<f4", buckets or k, start)
    ids = unpack_planes(body[start + 4 * means.size :], size, last.bit_length())
    if not buckets:
        return means[ids]
    blocks = -(-size // 256)
    drawn = stage_words(words, 22, 64 * blocks).reshape(blocks, 64, 4).transpose(0, 2, 1).reshape(-1)[:size]
    within = (drawn * sizes[ids].astype(np.uint64) >> np.uint64(32)).astype(int)
    return means[(np.cumsum(sizes) - sizes)[ids] + within]


def relative_error(spec: str, x: np.ndarray) -> float:
    codec = get_codec(spec)
    decoded = codec.decode(codec.encode(x, KEY)).astype(np.float64)
    return float(np.sum((decoded - x) ** 2) / np.sum(x.astype(np.float64) ** 2))


@pytest.mark.parametrize("spec", ["lss", "lss:bits=5", "lss:bits=3,buckets=0.1", "lss:buckets=0.05,allocation=weighted"])
def test_a_decoder_in_numpy_reads_the_same(spec: str) -> None:
    codec = get_codec(spec)
    payload = codec.encode(student(3001), KEY)
    np.testing.assert_array_equal(codec.decode(payload), read_lss(payload.to_bytes()))


@pytest.mark.parametrize(("name", "spec"), [("lss", "lss"), ("lss-buckets", "lss:bits=3,buckets=0.1")])
def test_golden_bytes(name: str, spec: str) -> None:
    check_golden(name, spec, read_lss)


@pytest.mark.parametrize(("bits", "expected"), [(1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)])
def test_gaussian_clusters_reach_the_error_of_lloyd_and_max(bits: int, expected: float) -> None:
    """Compare lss's error with table I of Max, IRE Trans. IT 6, 1960, within 2 %, on 2^18 values with clusters found on 65
    536 of them.
    """
    assert relative_error(f"lss:bits={bits}", gaussian(1 << 18)) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_clusters_are_the_best_partition_there_is(seed: int) -> None:
    """Check lss's clusters against all partitions of 12 sorted values into 4 runs."""
    x = student(12, seed=seed)
    v = np.sort(x.astype(np.float64))
    costs = []
    for cuts in itertools.combinations(range(1, 12), 3):
        costs.append(sum(np.sum((part - part.mean()) ** 2) for part in np.split(v, cuts)))
    codec = get_codec("lss")
    decoded = codec.decode(codec.encode(x, KEY)).astype(np.float64)
    assert np.sum((decoded - x) ** 2) == pytest.approx(min(costs), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("spec", ["lss", "lss:bits=3,buckets=0.1"])
def test_every_value_is_the_mean_of_those_that_share_it(spec: str) -> None:
    x, codec = student(4000), get_codec(spec)
    decoded = codec.decode(codec.encode(x, KEY))
    for value in np.unique(decoded):
        assert value == pytest.approx(x[decoded == value].astype(np.float64).mean(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("rate", [0.5, 1, 2])
def test_at_a_rate_the_entropy_of_the_ids_is_kept_and_the_error_is_that_of_theory(rate: float) -> None:
    """Check that the error lies .152, .239 and .2545 bit above the rate-distortion function at rates .5, 1 and 2
    (entropy-coded scalar quantisers of a Gaussian), within 3 %.
    """
    x, codec = gaussian(1 << 17), get_codec(f"lss:bits=4,rate={rate}")
    payload = codec.encode(x, KEY)
    shares = np.unique(codec.decode(payload), return_counts=True)[1] / x.size
    entropy = -np.sum(shares * np.log2(shares))
    assert entropy == pytest.approx(rate, abs=0.02)
    excess = {0.5: 0.152, 1: 0.239, 2: 0.2545}[rate]
    assert relative_error(f"lss:bits=4,rate={rate}", x) == pytest.approx(4 ** (excess - entropy), rel=0.03)
    coded = get_codec(f"lss:bits=4,rate={rate}+ans").encode(x, KEY)
    assert 8 * coded.nbytes / x.size < 1.03 * entropy + 0.02


def test_ids_are_packed_in_the_bits_they_need() -> None:
    assert get_codec("lss:bits=3").encode(gaussian(10_000), KEY).nbytes == 12 + 8 + 4 * 8 + 3750


def test_a_fitted_codebook_scales_with_what_is_coded() -> None:
    x = gaussian(50_000)
    fitted = get_codec("lss:bits=3").fit(x, KEY)
    assert fitted == get_codec(repr(fitted))
    y = (1e-6 * gaussian(50_000, seed=1)).astype(np.float32)
    decoded = fitted.decode(fitted.encode(y, KEY))
    assert np.sum((decoded - y) ** 2.0) / np.sum(y**2.0) == pytest.approx(0.03454, rel=0.03)


def test_a_codebook_of_another_distribution_still_shrinks_what_it_is_given() -> None:
    fitted = get_codec("lss").fit(gaussian(5000) ** 2, KEY)
    x = -(student(5000) ** 2)
    decoded = fitted.decode(fitted.encode(x, KEY))
    assert np.sum((decoded - x) ** 2.0) < np.sum(x**2.0)


def test_zeros_cannot_be_fitted_and_leave_the_codec_as_it_is() -> None:
    codec = get_codec("lss")
    assert codec.fit(np.zeros(100, np.float32), KEY) is codec
    assert codec.fit(np.zeros(0, np.float32), KEY) is codec


def left(sizes: np.ndarray, counts: np.ndarray, variances: np.ndarray) -> float:
    """Return the expected squared error if clusters of `counts` values with `variances` are spread over `sizes` buckets."""
    return float(np.sum(variances * (counts - sizes * (1 - np.exp(-counts / sizes)))))


def test_buckets_are_allocated_as_well_as_by_trying_all_sizes() -> None:
    counts, variances = np.array([400, 90, 10]), np.array([0.1, 1.0, 5.0])
    tried = [np.array([a, b, 60 - a - b]) for a in range(1, 59) for b in range(1, 60 - a)]
    tried = [sizes for sizes in tried if (sizes <= counts).all()]
    best = min(left(sizes, counts, variances) for sizes in tried)
    found = optimal(counts, variances, 60)
    assert 55 <= found.sum() <= 60
    assert left(found, counts, variances) < 1.02 * best
    assert left(weighted(counts, np.array([0.1, 1.0, 4.0]), 60), counts, variances) > left(found, counts, variances)


def test_weighted_sizes_follow_entropy_times_centre() -> None:
    counts, centres = np.array([500, 500]), np.array([-1.0, 3.0])
    np.testing.assert_allclose(weighted(counts, centres, 400), [100, 300], atol=1)


@pytest.mark.parametrize("x", [gaussian(40_000), student(40_000)], ids=["gaussian", "student"])
def test_buckets_leave_the_error_that_was_expected(x: np.ndarray) -> None:
    """Compare the squared error over 4 clusters, with about 1000 buckets each, with the expectation for values that fall
    into buckets at random, within 5 %.
    """
    codec = get_codec("lss:buckets=0.1")
    payload = codec.encode(x, KEY)
    ids = unpack_planes(payload.body[8 + 16 + 16 + 4 * 4000 :].tobytes(), x.size, 2)
    sizes = payload.body[24:40].copy().view(np.uint32).astype(int)
    parts = [x[ids == k].astype(np.float64) for k in range(4)]
    expected = left(sizes, np.array([p.size for p in parts]), np.array([p.var() for p in parts]))
    assert np.sum((codec.decode(payload) - x.astype(np.float64)) ** 2) == pytest.approx(expected, rel=0.05)


def test_a_chain_after_a_sparsifier_is_fitted_to_what_is_kept() -> None:
    x, chain = student(20_000), get_codec("topk:ratio=0.05+lss:bits=3+ans")
    fitted = chain.fit(x, KEY)
    assert repr(fitted) != repr(chain)
    y = fitted.decode(fitted.encode(x, KEY))
    kept = y != 0
    assert kept.sum() == 1000
    assert np.sum((y[kept] - x[kept]) ** 2.0) < 0.05 * np.sum(x[kept] ** 2.0)


@pytest.mark.parametrize(
    "settings",
    [
        *("bits=0", "bits=9", "buckets=1.5", "allocation=even", "rate=0", "refit=0"),
        *("codebook=xyz", "codebook=0000c07f", "codebook=0000803f00000000", "bits=1,codebook=000000000000803f"),
    ],
)
def test_what_cannot_be_configured_is_refused(settings: str) -> None:
    with pytest.raises(CodecSpecError, match="lss"):
        get_codec(f"lss:{settings}")


@pytest.mark.parametrize(("at", "value"), [(0, 0), (0, 256), (4, 3), (4, 10**6), (24, 0), (24, 1000)])
def test_side_information_that_contradicts_itself_is_refused(at: int, value: int) -> None:
    codec = get_codec("lss:buckets=0.1")
    data = bytearray(codec.encode(gaussian(500), KEY).to_bytes())
    struct.pack_into("<I", data, 12 + at, value)
    with pytest.raises(PayloadError, match="lss"):
        codec.decode(Payload.from_bytes(bytes(data)))


@pytest.mark.parametrize("bits", [1, 2, 3])
def test_no_start_of_lloyds_iteration_ends_below_the_clusters_of_a_recorded_gradient(bits: int) -> None:
    """Check lss's clusters against SciPy's k-means from 20 starts. The values have 89 % exact zeros, so cluster sizes are
    very unequal.
    """
    x = recorded().reshape(-1).astype(np.float64)
    best = np.inf
    for seed in range(20):
        centres, _ = kmeans2(x[:, None], 2**bits, iter=100, minit="++", seed=seed)
        best = min(best, float(np.sum(np.min((x[:, None] - centres[:, 0]) ** 2, axis=1))))
    assert relative_error(f"lss:bits={bits}", recorded()) * np.sum(x**2) <= best * (1 + 1e-5)


def test_a_chain_with_ans_takes_the_entropy_of_the_ids() -> None:
    """Check that the payload takes 1.03 times the bytes of the ids' entropy and at most 120 more, for values with 89 % exact
    zeros.

    The further bytes are 40 of headers, 16 of means, 32 of states, and the table of ans.
    """
    x, codec = recorded(), get_codec("lss:bits=2+ans")
    payload = codec.encode(x, KEY)
    shares = np.unique(codec.decode(payload), return_counts=True)[1] / x.size
    assert shares.size == 4
    assert payload.nbytes - 120 < 1.03 * x.size / 8 * -np.sum(shares * np.log2(shares)) < payload.nbytes


def originals_codebook(x: np.ndarray) -> str:
    """Return the published two-bit codebook, in which each sign has two classes: its largest 5 %, and the rest."""
    v = x.reshape(-1).astype(np.float64)
    low, high = np.quantile(v[v < 0], 0.05), np.quantile(v[v >= 0], 0.95)
    return (np.array([low, 0, high]) / np.sqrt(np.mean(v * v))).astype("<f4").tobytes().hex()


@pytest.mark.parametrize("buckets", [0, 0.01, 0.03])
def test_with_fewer_bytes_the_error_on_a_gradient_is_3_db_below_the_originals_and_that_of_packed_clusters(buckets: float) -> None:
    x, ours = recorded(), "lss:bits=4,rate=1+ans"
    theirs = f"lss:buckets={buckets},allocation=weighted,codebook={originals_codebook(x)}"
    nbytes = [get_codec(spec).encode(x, KEY).nbytes for spec in (ours, "lss", theirs)]
    assert nbytes[0] < min(nbytes[1:])
    assert relative_error(ours, x) < 10**-0.3 * min(relative_error("lss", x), relative_error(theirs, x))
