"""Chains: the order of stages, and decoding, which equals decoding by the single stages."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import gaussian, student

KEY = Key.derive(2)


@pytest.mark.parametrize(
    "spec",
    ["qsgd+qsgd", "zstd+qsgd", "svd+svd", "svd+zstd", "qsgd+zstd+zstd", "qsgd+svd", "svd+identity", "svd+qsgd+bf16"],
)
def test_other_orders_are_refused_when_parsed(spec: str) -> None:
    with pytest.raises(CodecSpecError, match="is no chain"):
        get_codec(spec)


@pytest.mark.parametrize("spec", ["zstd", "contractive(zstd)"])
def test_a_stage_is_no_codec(spec: str) -> None:
    with pytest.raises(CodecSpecError, match="unknown codec 'zstd'"):
        get_codec(spec)


def test_an_unknown_stage_is_named_with_the_nearest() -> None:
    with pytest.raises(CodecSpecError, match=r"unknown stage 'zst' \(did you mean zstd\?\)"):
        get_codec("qsgd+zst")


@pytest.mark.parametrize("spec", ["qsgd", "qsgd:levels=1", "qsgd:levels=300", "qsgd:bucket=7,norm=max", "fp16", "bf16"])
def test_a_lossless_stage_changes_nothing_but_the_bytes(spec: str) -> None:
    x = student(5003)
    plain, coded = get_codec(spec), get_codec(f"{spec}+zstd")
    np.testing.assert_array_equal(coded.decode(coded.encode(x, KEY)), plain.decode(plain.encode(x, KEY)))
    assert (coded.unbiased, coded.lossless, coded.sparse, coded.shaped) == (plain.unbiased, False, False, False)


def test_zstd_comes_near_the_entropy_of_the_symbols() -> None:
    """Check that zstd at level 1 takes at most 15 % more bits than the zeroth-order entropy of the 15 levels, apart from one
    float32 per bucket.
    """
    x = gaussian(1 << 20)
    codec = get_codec("qsgd:norm=max+zstd")
    payload = codec.encode(x, KEY)
    decoded = get_codec("qsgd:norm=max").decode(get_codec("qsgd:norm=max").encode(x, KEY)).reshape(-1, 512)
    symbols = np.rint(decoded / np.abs(decoded).max(axis=1, keepdims=True) * 15).astype(np.int64)
    shares = np.unique(symbols, return_counts=True)[1] / x.size
    entropy = -float(np.sum(shares * np.log2(shares)))
    bits = 8 * (payload.nbytes - 4 * (x.size >> 9)) / x.size
    assert entropy < bits < 1.15 * entropy


def test_factors_are_quantised() -> None:
    """Check the error of the product if both factors are coded with 8 bits per value and a norm per 64 values: 1.1 % of its
    norm.

    Stochastic rounding has an error of step^2 / 6 per value on average. The step is 1/127 of the largest of 64 normal
    values, which is about 2.4 times their RMS. So the error is 2.4^2 / 127^2 / 6 = 6e-5 of the energy of each factor, and
    sqrt(2 * 6e-5) = 1.1 % of the product's norm.
    """
    left, right = gaussian(200, 2), gaussian(2, 300, seed=1)
    x = left @ right
    plain, coded = get_codec("svd:rank=2"), get_codec("svd:rank=2+qsgd:levels=127,bucket=64,norm=max")
    exact, near = plain.encode(x, KEY), coded.encode(x, KEY)
    assert near.nbytes == 16 + 8 + 8 + 4 * 16 + 1000
    assert exact.nbytes == 16 + 8 + 4000
    assert np.linalg.norm(coded.decode(near) - x) / np.linalg.norm(x) == pytest.approx(0.011, rel=0.15)
    assert (coded.unbiased, coded.shaped) == (True, True)
    assert not get_codec("svd+fp16").unbiased


def test_the_contractive_form_of_a_chain_takes_that_of_its_reducer() -> None:
    chain = get_codec("svd:rank=2+qsgd").contractive()
    reducer = get_codec("svd:rank=2").contractive()
    assert repr(chain) == f"contractive({reducer!r}+{get_codec('qsgd')!r})"
    assert repr(get_codec("svd:rank=2+fp16").contractive()) == f"{reducer!r}+fp16"


def test_a_lossless_stage_with_other_symbols_is_refused() -> None:
    """Check that a valid frame with too many, too few or other symbols than the quantiser expects is refused."""
    import zstandard

    codec = get_codec("qsgd+zstd")
    data = codec.encode(gaussian(600), KEY).to_bytes()
    (length,) = struct.unpack_from("<I", data, 12)
    head = data[: 16 + length]
    for symbols, message in ((bytes([31] * 600), "symbol 31"), (bytes(599), "599 bytes"), (bytes(1 << 20), "1048576 bytes")):
        frame = zstandard.ZstdCompressor().compress(symbols)
        with pytest.raises(PayloadError, match=message):
            codec.decode(Payload.from_bytes(head + frame))
    good = zstandard.ZstdCompressor().compress(bytes(600))
    assert codec.decode(Payload.from_bytes(head + good)).shape == (600,)
    for frame in (good + b"\0", good[:-1], b"", zstandard.ZstdCompressor(write_content_size=False).compress(bytes(600))):
        with pytest.raises(PayloadError, match="zstd"):
            codec.decode(Payload.from_bytes(head + frame))


def test_a_section_is_padded_with_zeros() -> None:
    codec = get_codec("svd:rank=1+qsgd")
    data = codec.encode(gaussian(20, 30), KEY).to_bytes()
    for length in (3, 2**31, 2**32 - 1):
        with pytest.raises(PayloadError):
            codec.decode(Payload.from_bytes(data[:16] + length.to_bytes(4, "little") + data[20:]))
