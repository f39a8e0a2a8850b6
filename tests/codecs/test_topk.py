"""Top-k compared with a stable sort and a reader in plain Python. Properties that all selectors share are tested here too."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.kernels.large_values import places
from psnode.codecs.table import number_of
from psnode.codecs.topk import Topk
from psnode.errors import CodecSpecError, NonFiniteGradientError, PayloadError
from tests.codecs.family import fed_back
from tests.codecs.golden_reader import read as read_golden
from tests.codecs.golden_store import check_golden
from tests.codecs.index_oracle import body_of, log2_binomial, read_selection, sections

BOTH = ["topk:ratio=0.01", "topk:ratio=0.01,sampled=true"]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return rng(seed).standard_normal(shape).astype(np.float32)


def mostly_zero(size: int, seed: int = 0) -> np.ndarray:
    """Return values with 62 % exact zeros, as in the gradient of a network whose last stage sees 1x1 maps."""
    return normal(size, seed=seed) * (rng(seed + 1).random(size) < 0.38).astype(np.float32)


def top(x: np.ndarray, keep: int) -> np.ndarray:
    """Return the ascending indices of the `keep` largest non-zero magnitudes; among equal magnitudes, the lowest indices."""
    flat = x.reshape(-1)
    order = np.lexsort((np.arange(flat.size), -np.abs(flat.astype(float))))[:keep]
    return np.sort(order[flat[order] != 0])


def sparse(x: np.ndarray, indices: np.ndarray) -> np.ndarray:
    y = np.zeros(x.size, np.float32)
    y[indices] = x.reshape(-1)[indices]
    return y.reshape(x.shape)


# configuration


def test_the_bare_name_keeps_one_percent_exactly():
    codec = get_codec("topk")
    assert codec == Topk(ratio=0.01, sampled=False)
    assert codec.sparse
    assert not any([codec.unbiased, codec.lossless, codec.linear, codec.shaped])
    assert codec.contractive() is codec


@pytest.mark.parametrize("spec", ["topk", "topk:ratio=1", "topk:ratio=0.001,sampled=true", "topk:ratio=1e-05"])
def test_a_codec_is_what_its_repr_says(spec):
    assert get_codec(repr(get_codec(spec))) == get_codec(spec)


@pytest.mark.parametrize("spec", ["ratio=0", "ratio=-1", "ratio=1.01", "ratio=nan", "ratio=", "ratio=few", "k=3", "sampled=1"])
def test_what_cannot_be_configured_is_refused(spec):
    with pytest.raises(CodecSpecError, match=spec.partition("=")[0]):
        get_codec(f"topk:{spec}")


# sent values


@pytest.mark.parametrize("ratio", [1e-3, 0.01, 0.1, 0.5, 1])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (64,), (100, 37), (3, 0, 2), (16, 8, 3, 3), (40_001,)])
def test_the_largest_are_decoded_as_they_are_and_the_rest_is_zero(shape, ratio):
    codec = Topk(ratio=ratio)
    for x in (normal(*shape), np.asarray(np.sign(normal(*shape))), mostly_zero(math.prod(shape)).reshape(shape)):
        payload = codec.encode(x, rng())
        assert payload.nbytes <= codec.max_nbytes(shape)
        expected = sparse(x, top(x, max(1, round(ratio * x.size))))
        y = codec.decode(Payload.from_bytes(payload.to_bytes()))
        assert y.shape == shape
        assert np.array_equal(y.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("spec", BOTH)
def test_a_reader_in_plain_python_finds_the_same(spec):
    x = mostly_zero(50_000)
    payload = get_codec(spec).encode(x, rng())
    indices, values = read_selection(payload.to_bytes(), x.size)
    assert np.array_equal(indices, top(x, 500))
    assert np.array_equal(values, x[indices])


def test_zeros_are_not_sent_where_little_else_is():
    x = np.zeros(1000, np.float32)
    x[[3, 500]] = -1, 2
    codec = Topk(ratio=0.5)
    payload = codec.encode(x, rng())
    assert codec.support(payload).tolist() == [3, 500]
    nothing = codec.encode(np.zeros((20, 50), np.float32), rng())
    assert nothing.nbytes == 16 + 12
    assert codec.support(nothing).size == 0
    assert not codec.decode(nothing, np.ones((20, 50), np.float32)).any()


@pytest.mark.parametrize("name", ["normal", "mostly zero", "heavy tail", "equal", "ascending", "signs"])
@pytest.mark.parametrize("seed", range(5))
def test_a_sampled_threshold_sends_the_largest_and_no_fewer_than_four_fifths(name, seed):
    size = 200_000
    x = {
        "normal": normal(size),
        "mostly zero": mostly_zero(size),
        "heavy tail": rng(1).standard_t(1.2, size).astype(np.float32),
        "equal": np.full(size, 3, np.float32),
        "ascending": np.arange(size, dtype=np.float32),
        "signs": np.sign(normal(size)),
    }[name]
    for ratio in (1e-3, 0.01, 0.3):
        codec = Topk(ratio=ratio, sampled=True)
        support = codec.support(codec.encode(x, rng(seed)))
        keep = round(ratio * size)
        assert 0.8 * keep <= support.size <= keep
        assert np.array_equal(support, top(x, support.size))


def test_a_sampled_threshold_sends_all_that_is_not_zero_if_that_is_less():
    x = normal(100_000) * (rng(3).random(100_000) < 0.002).astype(np.float32)
    codec = Topk(ratio=0.01, sampled=True)
    assert np.array_equal(codec.support(codec.encode(x, rng())), np.flatnonzero(x))


def test_a_sampled_threshold_that_too_few_reach_is_lowered():
    """Check that 1600 to 2000 entries are sent although only 400 of the 2000 sampled positions have large entries: the first
    threshold, which is one of the large entries, is lowered.
    """
    size = 200_000
    key = rng(1).integers(2**64, size=2, dtype=np.uint64)
    found = np.empty(2000, np.uint32)
    places(size, key, number_of("topk"), found)
    x = normal(size)
    x[found[::5]] += 1000 + np.arange(400)
    codec = Topk(ratio=0.01, sampled=True)
    support = codec.support(codec.encode(x, rng(1)))
    assert 1600 <= support.size <= 2000
    assert np.array_equal(support, top(x, support.size))


# decoding and errors


@pytest.mark.parametrize("weight", [1.0, -0.5, 1 / 3])
@pytest.mark.parametrize("spec", [*BOTH, "topk:ratio=0.6"])
def test_decode_add_changes_the_support_and_nothing_else(spec, weight):
    x = normal(300, 50)
    codec = get_codec(spec)
    payload = codec.encode(x, rng())
    out = np.full(x.shape, -0.0, np.float32)
    out[::2] = normal(150, 50, seed=4)
    expected = out.copy().reshape(-1)
    support = codec.support(payload)
    assert support.dtype == np.int64
    expected[support] += np.float32(weight) * x.reshape(-1)[support]
    codec.decode_add(payload, out, weight)
    assert np.array_equal(out.reshape(-1).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("spec", [*BOTH, "topk:ratio=0.01+qsgd:levels=7"])
def test_the_error_in_place_changes_the_support_and_nothing_else(spec):
    x = normal(30_000)
    x[::3] = -0.0
    codec = get_codec(spec)
    payload = codec.encode(x, rng())
    apart = np.full_like(x, 7)
    assert codec.encode(x, rng(), error=apart) == payload
    inside = x.copy()
    assert codec.encode(inside, rng(), error=inside) == payload
    expected = x.copy()
    support = codec.support(payload)
    expected[support] = x[support] - codec.decode(payload)[support]
    for error in (apart, inside):
        assert np.array_equal(error.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(
    "spec",
    [
        *BOTH,
        "topk:ratio=0.4",
        "graddrop",
        "threshold",
        "threshold:tau=2",
        "randk",
        "randk:scaled=false",
        "topk+qsgd",
        "entrywise",
    ],
)
def test_a_step_of_error_feedback_is_a_sum_and_an_encoding(spec):
    codec = get_codec(spec)
    for shape in ((30_000,), (40, 7), (1,), (0,), ()):
        x, residual = np.asarray(normal(*shape)), np.asarray(3 * normal(*shape, seed=1))
        before = x.copy()
        expected = np.asarray(residual + x)
        payload = codec.encode(expected, rng(4), error=expected)
        fused = residual.copy()
        assert fed_back(codec, x, rng(4), fused) == payload
        assert np.array_equal(fused.view(np.uint32), expected.view(np.uint32))
        assert np.array_equal(x, before)


def test_no_dense_temporary_is_made():
    x = normal(1 << 20)
    codec = get_codec("topk:ratio=0.001")
    payload, error, out = codec.encode(x, rng()), x.copy(), np.zeros_like(x)
    codec.encode(error, rng(), error=error)
    codec.decode_add(payload, out)
    for work in (
        lambda: codec.encode(x, rng()),
        lambda: codec.encode(error, rng(), error=error),
        lambda: codec.decode_add(payload, out),
        lambda: codec.support(payload),
    ):
        tracemalloc.start()
        work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 0.05 * x.nbytes


def test_ties_do_not_enlarge_the_workspace():
    x = np.ones(1 << 20, np.float32)
    codec = get_codec("topk:ratio=0.001")
    codec.encode(x, rng())
    tracemalloc.start()
    payload = codec.encode(x, rng())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.05 * x.nbytes
    assert codec.support(payload).tolist() == list(range(1049))


@pytest.mark.parametrize("spec", BOTH)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 4096, 29_999])
def test_a_value_that_is_not_finite_is_named(spec, value, index):
    x = mostly_zero(30_000)
    x[index] = value
    for error in (None, np.empty_like(x)):
        with pytest.raises(NonFiniteGradientError) as caught:
            get_codec(spec).encode(x, rng(), error=error)
        assert caught.value.index == index


@pytest.mark.long
def test_another_process_without_vector_instructions_encodes_and_decodes_the_same():
    specs = ["topk:ratio=0.01", "topk:ratio=0.3", "topk:sampled=true", "randk:ratio=0.05", "threshold", "graddrop", "entrywise"]
    x = mostly_zero(20_000)
    expected = b"".join(
        get_codec(s).encode(x, rng(5)).to_bytes() + get_codec(s).decode(get_codec(s).encode(x, rng(5))).tobytes() for s in specs
    )
    program = (
        "import sys, numpy as np; from psnode.codecs import get_codec;"
        "x = np.frombuffer(sys.stdin.buffer.read(), np.float32);"
        f"codecs = [get_codec(s) for s in {specs}];"
        "payloads = [c.encode(x, np.random.default_rng(5)) for c in codecs];"
        "[sys.stdout.buffer.write(p.to_bytes() + c.decode(p).tobytes()) for c, p in zip(codecs, payloads)]"
    )
    environment = {"PYTHONHASHSEED": "77", "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    result = subprocess.run(
        [sys.executable, "-c", program], input=x.tobytes(), env=os.environ | environment, capture_output=True, check=True
    )
    assert result.stdout == expected


# cost


@pytest.mark.parametrize("ratio", [1e-3, 0.01, 0.1, 0.4])
def test_a_payload_is_32_bits_a_value_and_log2_binomial_for_the_indices(ratio):
    size = 1 << 18
    payload = Topk(ratio=ratio).encode(normal(size), rng())
    keep = round(ratio * size)
    theory = 4 * keep + log2_binomial(size, keep) / 8
    assert theory <= payload.nbytes <= 1.02 * theory + 12 + 4 + 5 + 3


def test_quantised_values_cost_what_the_quantiser_says():
    size, keep = 1 << 18, 2621
    payload = get_codec("topk:ratio=0.01+qsgd:levels=7,bucket=512").encode(normal(size), rng())
    quantised = 8 + 4 * -(-keep // 512) + keep * 4 / 8
    assert payload.nbytes <= 1.02 * (log2_binomial(size, keep) / 8 + quantised) + 12 + 4 + 5 + 3


def test_contraction_is_at_least_that_of_random_entries():
    for x in (normal(10_000), mostly_zero(10_000), rng().standard_t(3, 10_000).astype(np.float32), np.ones(10_000, np.float32)):
        for ratio in (1e-3, 0.01, 0.1):
            codec = Topk(ratio=ratio)
            left = np.sum((x - codec.decode(codec.encode(x, rng()))).astype(float) ** 2)
            assert left <= (1 - ratio) * np.sum(x.astype(float) ** 2) * (1 + 1e-6)


@pytest.mark.parametrize("spec", [*BOTH, "topk:ratio=0.05+qsgd:levels=7"])
def test_error_feedback_stays_bounded_and_loses_nothing(spec):
    codec = get_codec(spec).contractive()
    generator, size = rng(), 2000
    residual, sent, total = np.zeros(size, np.float32), np.zeros(size), np.zeros(size)
    norms = []
    for _ in range(500):
        g = generator.standard_normal(size).astype(np.float32)
        residual += g
        total += g
        sent += codec.decode(codec.encode(residual, generator, error=residual))
        norms.append(float(np.linalg.norm(residual)))
    # entries wait about d / k = 100 steps: their square grows as in a random walk, and the largest are sent
    assert max(norms) <= 3 * math.sqrt(100 * size)
    assert max(norms[250:]) <= 1.2 * max(norms[:250])
    assert np.abs(sent + residual - total).max() < 1e-3


# chains


def test_a_chain_quantises_the_kept_values_and_nothing_else():
    x = normal(20_000)
    chain, quantiser = get_codec("topk:ratio=0.01+qsgd:levels=7"), get_codec("qsgd:levels=7")
    payload = chain.encode(x, rng(8))
    kept = top(x, 200)
    assert np.array_equal(chain.support(payload), kept)
    values = quantiser.decode(quantiser.encode(x[kept], rng(8)))
    y = chain.decode(payload)
    assert np.array_equal(y[kept], values)
    assert not np.delete(y, kept).any()


@pytest.mark.parametrize("spec", ["topk:ratio=0.01+qsgd:levels=7", "topk+qsgd:levels=2+zstd", "topk:sampled=true+qsgd"])
def test_the_contractive_form_of_a_chain_decodes_the_best_multiple_without_a_dense_temporary(spec):
    x = normal(1 << 18)
    chain = get_codec(spec)
    form = chain.contractive()
    q = chain.decode(chain.encode(x, rng(3))).astype(float)
    payload = form.encode(x, rng(3))
    assert np.abs(form.decode(payload) - q * (x @ q) / (q @ q)).max() <= 1e-5 * np.abs(q).max()
    error = x.copy()
    tracemalloc.start()
    form.encode(error, rng(3), error=error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.3 * x.nbytes
    assert np.isin(np.flatnonzero(error != x), form.support(payload)).all()


# invalid bytes


def test_values_that_do_not_match_the_indices_are_refused():
    x = normal(5000)
    codec = get_codec("topk")
    data = codec.encode(x, rng()).to_bytes()
    for wrong in (data[:-4], data + bytes(4), data[:-1], data[:20], data[:12]):
        with pytest.raises(PayloadError):
            codec.decode(Payload.from_bytes(wrong))


def test_a_refused_payload_leaves_the_target_alone():
    x = normal(5000)
    for spec in ("topk", "topk+qsgd"):
        codec = get_codec(spec)
        data = bytearray(codec.encode(x, rng()).to_bytes())
        (side,), _ = sections(body_of(bytes(data)), 1)
        end = len(data) - len(body_of(bytes(data))) + 4 + len(side)
        data[end - 1] = 0  # the unary stream now ends too early
        out = normal(5000, seed=2)
        before = out.copy()
        with pytest.raises(PayloadError):
            codec.decode_add(Payload.from_bytes(data), out)
        assert np.array_equal(out, before)


def test_a_small_payload_of_a_huge_array_allocates_little():
    header = get_codec("topk").encode(np.zeros(1, np.float32), rng()).to_bytes()[:8] + np.uint32(2**28).tobytes()
    side = np.uint32(2**27).tobytes() + bytes(40)
    huge = Payload.from_bytes(header + np.uint32(len(side)).tobytes() + side)
    tracemalloc.start()
    with pytest.raises(PayloadError):
        get_codec("topk").support(huge)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("spec", [*BOTH, "topk:ratio=0.3", "topk+qsgd:levels=7"])
def test_altered_bytes_are_refused_or_decode_to_some_array(spec):
    x = mostly_zero(3000)
    codec = get_codec(spec)
    data = codec.encode(x, rng()).to_bytes()
    generator = rng(6)
    refused = 0
    for _ in range(2000):
        altered = bytearray(data)
        for _ in range(generator.integers(1, 5)):
            altered[generator.integers(12, len(altered))] = generator.integers(256)
        try:
            y = codec.decode(Payload.from_bytes(altered))
        except PayloadError:
            refused += 1
        else:
            assert y.shape == x.shape
    assert refused


GOLDEN = {
    "topk": "topk:ratio=0.05",
    "topk-dense": "topk:ratio=0.4",
    "topk-all": "topk:ratio=1",
    "topk-qsgd": "topk:ratio=0.1+qsgd:levels=7",
    "topk-qsgd-zstd": "topk:ratio=0.1+qsgd+zstd",
    "contractive-topk-qsgd": "contractive(topk:ratio=0.1+qsgd:levels=7)",
    "randk": "randk:ratio=0.1",
    "randk-dense": "randk:ratio=0.7,scaled=false",
    "threshold": "threshold",
    "threshold-fixed": "threshold:tau=0.01",
    "graddrop": "graddrop:ratio=0.1",
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_bytes(name):
    check_golden(name, GOLDEN[name], read_golden, same_bytes="zstd" not in name)
