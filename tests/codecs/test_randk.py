"""Rand-k compared with its theory, and with a reader in plain Python.

Seeds are fixed, so a test passes always or never. A bound of 4 standard errors would fail a correct program for a share of 6e-5
of the seeds.
"""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.randk import Randk
from psnode.errors import CodecSpecError, NonFiniteGradientError, PayloadError
from tests.codecs.index_oracle import body_of, sections
from tests.codecs.test_subset import in_plain_python

LARGEST = np.finfo(np.float32).max


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return rng(seed).standard_normal(shape).astype(np.float32)


def test_the_bare_name_is_unbiased_and_its_contractive_form_is_not():
    codec = get_codec("randk")
    assert codec == Randk(ratio=0.01, scaled=True)
    assert codec.unbiased
    assert codec.sparse
    assert not any([codec.linear, codec.shaped, codec.lossless])
    form = codec.contractive()
    assert form == Randk(ratio=0.01, scaled=False)
    assert not form.unbiased
    assert form.contractive() is form
    for each in (codec, form):
        assert get_codec(repr(each)) == each


@pytest.mark.parametrize("spec", ["ratio=0", "ratio=2", "ratio=nan", "scaled=maybe", "k=7"])
def test_what_cannot_be_configured_is_refused(spec):
    with pytest.raises(CodecSpecError, match=spec.partition("=")[0]):
        get_codec(f"randk:{spec}")


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.3, 0.7, 1])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (100, 37), (0,), (9_999,)])
def test_k_entries_are_sent_where_a_reader_in_plain_python_expects_them(shape, ratio):
    x = normal(*shape) if shape else np.float32(2.5).reshape(())
    x = np.asarray(x)
    count = max(1, round(ratio * x.size)) if x.size else 0
    for scaled in (True, False):
        codec = Randk(ratio=ratio, scaled=scaled)
        payload = codec.encode(x, rng(7))
        assert payload.nbytes == codec.max_nbytes(shape) == 8 + 4 * len(shape) + (4 + 20 + 4 * count if count else 0)
        y = codec.decode(Payload.from_bytes(payload.to_bytes()))
        assert y.shape == shape
        if not count:
            continue
        (side,), values = sections(body_of(payload.to_bytes()), 1)
        key = np.frombuffer(side, "<u8", 2)
        assert np.array_equal(key, rng(7).integers(2**64, size=2, dtype=np.uint64))
        assert struct.unpack_from("<I", side, 16) == (count,)
        places = in_plain_python(count, x.size, key)
        expected = np.zeros(x.size, np.float32)
        expected[places] = x.reshape(-1)[places].astype(float) * (x.size / count if scaled else 1)
        assert np.array_equal(y.reshape(-1), expected)
        assert np.array_equal(np.frombuffer(values, "<f4"), expected[places])
        assert codec.support(payload).tolist() == places


def test_a_decoder_needs_no_setting():
    x = normal(1000)
    payload = Randk(ratio=0.2).encode(x, rng())
    assert np.array_equal(Randk(ratio=0.01, scaled=False).decode(payload), Randk(ratio=0.2).decode(payload))


@pytest.mark.parametrize("ratio", [0.02, 0.1, 0.6])
def test_the_mean_of_decodes_is_x_and_omega_is_d_over_k_minus_one(ratio):
    """Check the mean of 4000 decodes: in sums over classes of coordinates (largest, middle, smallest magnitudes, zeros, all)
    and, within 5 sigma, for single coordinates.
    """
    size = 300
    x = rng(2).standard_t(3, size).astype(np.float32)
    x[::7] = 0
    codec = Randk(ratio=ratio)
    generator = rng(3)
    decoded = np.array([codec.decode(codec.encode(x, generator)).astype(float) for _ in range(4000)])
    ranks = np.abs(x).argsort().argsort()
    classes = [np.sign(x) * (ranks * 3 // size == third) for third in range(3)] + [np.sign(x), x]
    projected = (decoded - x) @ np.array(classes, float).T
    assert np.all(np.abs(projected.mean(axis=0)) <= 4 * projected.std(axis=0, ddof=1) / math.sqrt(len(decoded)))
    alone = np.abs(decoded.mean(axis=0) - x)
    assert np.all(alone <= 5 * np.abs(x) * math.sqrt((1 / ratio - 1) / len(decoded)))
    omega = np.mean(np.sum((decoded - x) ** 2, axis=1)) / np.sum(x.astype(float) ** 2)
    assert omega == pytest.approx(1 / ratio - 1, rel=0.05)


def test_the_unscaled_form_contracts_by_one_minus_k_over_d():
    x = normal(5000)
    energy = np.sum(x.astype(float) ** 2)
    codec = Randk(ratio=0.1, scaled=False)
    left = [np.sum((x - codec.decode(codec.encode(x, rng(seed)))).astype(float) ** 2) / energy for seed in range(200)]
    assert np.mean(left) == pytest.approx(0.9, abs=4 * np.std(left) / math.sqrt(200))
    assert max(left) < 1


def test_scaling_never_makes_a_finite_value_infinite():
    x = np.full(100, -LARGEST, np.float32)
    codec = Randk(ratio=0.05)
    y = codec.decode(codec.encode(x, rng()))
    assert np.array_equal(np.unique(y), [-LARGEST, 0])


@pytest.mark.parametrize("scaled", [True, False])
def test_the_error_is_what_the_payload_lacks_and_only_the_support_is_touched(scaled):
    x = normal(20_000)
    x[::5] = -0.0
    codec = Randk(ratio=0.03, scaled=scaled)
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
    assert np.array_equal(out[support], np.float32(0.25) * decoded[support])


@pytest.mark.parametrize("index", [0, 777, 19_999])
def test_a_value_that_is_not_finite_is_named_even_if_it_is_not_sent(index):
    x = normal(20_000)
    x[index] = np.inf
    for error in (None, np.empty_like(x)):
        with pytest.raises(NonFiniteGradientError) as caught:
            get_codec("randk").encode(x, rng(), error=error)
        assert caught.value.index == index


def test_error_feedback_of_the_contractive_form_stays_bounded():
    codec = get_codec("randk:ratio=0.05").contractive()
    generator, size = rng(), 1000
    residual, sent, total = np.zeros(size, np.float32), np.zeros(size), np.zeros(size)
    norms = []
    for _ in range(500):
        g = generator.standard_normal(size).astype(np.float32)
        residual += g
        total += g
        sent += codec.decode(codec.encode(residual, generator, error=residual))
        norms.append(float(np.sum(residual.astype(float) ** 2)))
    # a coordinate waits a geometric number of steps, 19 on average, and its expected square grows by 1 per step
    assert np.mean(norms[100:]) == pytest.approx(19 * size, rel=0.1)
    assert np.abs(sent + residual - total).max() < 1e-3


def test_a_chain_is_unbiased_and_sends_the_same_entries():
    x = normal(400)
    chain = get_codec("randk:ratio=0.25+qsgd:levels=3,bucket=64")
    assert chain.unbiased
    generator = rng(5)
    decoded = np.array([chain.decode(chain.encode(x, generator)).astype(float) for _ in range(3000)])
    assert abs(np.mean((decoded - x) @ x)) <= 4 * np.std((decoded - x) @ x, ddof=1) / math.sqrt(3000)
    payload = chain.encode(x, rng(6))
    assert np.array_equal(chain.support(payload), Randk(ratio=0.25).support(Randk(ratio=0.25).encode(x, rng(6))))


def test_counts_and_lengths_that_do_not_fit_are_refused():
    x = normal(100)
    codec = Randk(ratio=0.1)
    data = codec.encode(x, rng()).to_bytes()
    for wrong in (data[:-1], data[:-4], data + bytes(4), data[:20], data[:12]):
        with pytest.raises(PayloadError):
            codec.decode(Payload.from_bytes(wrong))
    for count in (0, 9, 11, 101, 2**32 - 1):
        altered = bytearray(data)
        altered[32:36] = struct.pack("<I", count)
        with pytest.raises(PayloadError):
            codec.decode(Payload.from_bytes(altered))
