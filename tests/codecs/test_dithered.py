"""Dithered quantisation compared with the theory of subtractive dither, an independent reader, and bounds of rate and error.

Each setting of a plain payload has its own pair of kernels, which takes 20 seconds to compile. The tests therefore share a
few settings: the default, step=0.04, 0.25 and 4 with buckets of 512, and step=0.03125. Chains have the same kernels at all
settings.
"""

from __future__ import annotations

import struct

import numpy as np
import pytest
from scipy import stats

from psnode.codecs import Payload, get_codec
from psnode.codecs.base import readonly
from psnode.codecs.dithered import Dithered
from psnode.codecs.kernels.dithered import quantise
from psnode.codecs.payload import header_nbytes
from psnode.codecs.rng import Key
from psnode.codecs.table import number_of
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import Floats, gaussian, recorded, student
from tests.codecs.golden_reader import header, plane_widths, section, unpack_planes
from tests.codecs.golden_store import check_golden
from tests.codecs.symbols_oracle import entropy, read_ans
from tests.codecs.threefry_oracle import halves

WORDS = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
KEY = Key(WORDS)
LARGEST = float(np.finfo(np.float32).max)


# an independent reader


def dither(words: tuple[int, int], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for every coordinate of whole blocks its dither k in 0..65535, and its class (quarter of the dither) in 0..3."""
    bits = halves(words, number_of("dithered"), -(-size // 512) * 512).astype(np.int64)
    sign, position = bits >> 15, np.arange(bits.size) % 512
    first = bits[np.arange(bits.size) - position + position % 128]
    quarter = (position // 128) ^ (first >> 13 & 3)
    magnitude = (bits & 0x1FFF) | quarter << 13
    return np.where(sign == 1, 32768 + magnitude, 32767 - magnitude), quarter


def values(q: np.ndarray, step: float, rms: np.ndarray, k: np.ndarray) -> Floats:
    """Return the decoded float32 values: the integers q minus their dither k, times step * rms.

    The arithmetic is in float32 if step * rms is within 2^-50..2^50, else in float64.
    """
    delta = step * rms.astype(np.float64)
    whole = q * 65536 + 32768 - k
    narrow = (whole.astype(np.float32) - np.float32(0.5)) * (delta / 65536).astype(np.float32)
    wide = np.clip((whole.astype(np.float64) - 0.5) * (delta / 65536), -LARGEST, LARGEST).astype(np.float32)
    result = np.where((delta >= 2.0**-50) & (delta <= 2.0**50), narrow, wide)
    return np.where(delta == 0, np.float32(0), result).astype(np.float32)


def unfold(codes: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Map codes 0, 1, 2, 3, 4 to 0, +1, -1, +2, -2 where the dither is positive, and to the negatives of these elsewhere."""
    signed = np.where(codes % 2, codes // 2 + 1, -(codes // 2))
    return np.where(k >= 32768, signed, -signed)


def fields(body: bytes) -> tuple[float, int, tuple[int, int]]:
    step, bucket, low, high = struct.unpack_from("<fIQQ", body)
    return step, bucket, (low, high)


def read_plain(body: bytes, size: int) -> Floats:
    step, bucket, words = fields(body)
    buckets = -(-size // bucket)
    rms = np.frombuffer(body, "<f4", buckets, 24)
    widths = np.frombuffer(body, np.uint8, buckets, 24 + 4 * buckets)
    at, codes = 24 + 4 * buckets + -(-buckets // 4) * 4, []
    for b, bits in enumerate(widths.tolist()):
        count = min(bucket, size - b * bucket)
        rest = count % 512
        length = count // 512 * 64 * bits + sum(-(-rest * width // 8) for width in plane_widths(bits))
        codes.append(unpack_planes(body[at : at + length], count, bits) if bits else np.zeros(count, np.int64))
        at += length
    assert at == len(body)
    k = dither(words, size)[0][:size]
    return values(unfold(np.concatenate(codes), k), step, np.repeat(rms, bucket)[:size], k)


def read_symbols(body: bytes, size: int) -> Floats:
    side, rest = section(body)
    step, bucket, words = fields(side)
    alphabet, escapes = struct.unpack_from("<II", side, 24)
    buckets = -(-size // bucket)
    rms = np.frombuffer(side, "<f4", buckets, 32)
    escaped = np.frombuffer(side, "<i2", escapes, 32 + 4 * buckets)
    symbols = read_ans(rest, size, alphabet)
    k, quarter = dither(words, size)
    codes, full = np.empty(size, np.int64), size // 512
    codes[512 * full :] = symbols[512 * full :]
    for block in range(full):
        for j in range(128):
            for g in range(4):
                at = 512 * block + 128 * g + j
                codes[at] = symbols[quarter[at] * full * 128 + 128 * block + j]
    q = unfold(codes, k[:size])
    assert np.count_nonzero(codes == 255) == escapes
    q[codes == 255] = escaped
    return values(q, step, np.repeat(rms, bucket)[:size], k[:size])


def read(data: bytes) -> Floats:
    stages, shape, body = header(data)
    size = int(np.prod(shape, dtype=np.int64))
    return read_plain(body, size) if len(stages) == 1 else read_symbols(body, size)


@pytest.mark.parametrize(
    "spec", ["dithered", "dithered:step=0.04,bucket=512", "dithered:step=4,bucket=512", "dithered:step=6+ans", "dithered+ans"]
)
def test_an_independent_reader_agrees(spec: str) -> None:
    for x in (gaussian(5000), student(1024) ** 3, recorded()[:9], gaussian(3), gaussian(700) * np.float32(1e30)):
        codec = get_codec(spec)
        payload = codec.encode(x, KEY)
        np.testing.assert_array_equal(codec.decode(payload).reshape(-1), read(payload.to_bytes()))


@pytest.mark.parametrize("spec", ["dithered", "dithered:step=0.04,bucket=512", "dithered+ans"])
def test_golden_bytes(spec: str) -> None:
    check_golden(spec.replace(":step=0.04,bucket=512", "-fine").replace("+", "-"), spec, read)


# the distribution of the error


def scaled_errors(x: Floats, step: float, decodes: int) -> np.ndarray:
    """Return the errors of `decodes` decodes in units of step * rms, shape (decodes, size). The RMS of each bucket is
    computed here.

    At the default step, all of the 1024 values are in one bucket.
    """
    codec = Dithered() if step == 1 else Dithered(step=step, bucket=512)
    bucket = min(codec.bucket, x.size)
    rms = np.repeat(np.sqrt(np.mean(x.reshape(-1, bucket).astype(np.float64) ** 2, axis=1)), bucket)
    found = [codec.decode(codec.encode(x, Key.derive(number, "law"))) for number in range(decodes)]
    return (np.array(found, np.float64) - x) / (step * rms)


INPUTS = {
    "gaussian": gaussian(1024),
    "student": student(1024),
    "constant": np.full(1024, np.float32(0.37)),
    "sparse": gaussian(1024) * (np.arange(1024) % 8 == 3),
    "tiny beside large": np.where(np.arange(1024) % 64 == 0, np.float32(3.0), np.float32(1e-5)).astype(np.float32),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("step", [0.25, 1.0, 4.0])
def test_the_error_of_a_coordinate_is_uniform_whatever_the_value(name: str, step: float) -> None:
    """Check by Kolmogorov-Smirnov tests that the errors of 20 coordinates over 4000 keys are uniform: p >= 1e-5 each; at
    most 3e-3 of seeds would fail one.
    """
    errors = scaled_errors(INPUTS[name], step, 4000)
    for coordinate in range(7, 1024, 51):
        assert stats.kstest(errors[:, coordinate], stats.uniform(-0.5, 1).cdf).pvalue >= 1e-5
    assert np.abs(errors).max() <= 0.5 + 2.0**-15


@pytest.mark.sweep
@pytest.mark.parametrize("name", INPUTS)
def test_the_squared_error_is_that_of_theory_and_the_mean_is_exact(name: str) -> None:
    """Check omega = step^2 / 12 within 1 %, and class means of the error within 4 standard errors of 0 (6e-5
    of seeds fail each).
    """
    errors = scaled_errors(INPUTS[name], 1.0, 2000)
    assert np.mean(errors**2) * 12 == pytest.approx(1, abs=0.01)
    flat = INPUTS[name]
    for part in np.array_split(np.argsort(np.abs(flat), kind="stable"), 8):
        sums = errors[:, part].sum(axis=1)
        assert abs(sums.mean()) <= 4 * sums.std(ddof=1) / np.sqrt(2000)


def test_errors_of_coordinates_in_different_quarters_are_uncorrelated_and_of_neighbours_independent() -> None:
    """Check 159 correlations of errors, each of 4000 pairs of coordinates 1, 2 or 64 apart, against 4.5 / sqrt(4000); 1.1e-3
    of seeds would fail one.
    """
    errors = scaled_errors(INPUTS["gaussian"], 1.0, 4000)[:, :512]
    for shift in (1, 2, 64):
        near = [stats.pearsonr(errors[:, i], errors[:, i + shift]).statistic for i in range(0, 128 - shift, 2)]
        assert np.abs(near).max() <= 4.5 / np.sqrt(4000)


def test_entries_far_below_the_step_are_kept_on_average() -> None:
    """Check that the mean of a million entries of 1e-4 of the RMS is kept within 4 standard errors, which are 1.2 % of its
    value.
    """
    x = np.full(1 << 20, np.float32(1e-4))
    x[::4096] = 64.0
    small = np.ones(x.size, np.bool_)
    small[::4096] = False
    total = 0.0
    for number in range(16):
        codec = get_codec("dithered")
        total += codec.decode(codec.encode(x, Key.derive(number)))[small].mean(dtype=np.float64)
    standard_error = np.sqrt(1 / 12 / (16 * small.sum()))
    assert abs(total / 16 - 1e-4) <= 4 * standard_error


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.8125, 2.0**-7])
def test_where_sixteen_bits_end_in_a_tie_the_rest_of_the_value_decides(fraction: float) -> None:
    """Check how ties are rounded: the dither k = 65535 - floor(2^16 a) mod 2^16 makes every coordinate a tie, which further
    random bits decide.

    `a` is the value in steps. The number of values rounded up is binomial. It is within 4 standard errors of its mean; 6e-5
    of seeds would fail.
    """
    v = np.full(512, np.float32((1000 + fraction) / 65536))
    k, q, raised = np.full(512, 65535 - 1000, np.uint32), np.empty(512, np.int32), 0
    for number in range(100):
        quantise(v, 1.0, k, np.array([number, 5], np.uint64), number_of("dithered"), 512 * number, q)
        assert set(q.tolist()) <= {0, 1}
        raised += int(q.sum())
    assert abs(raised - 51_200 * fraction) <= 4 * np.sqrt(51_200 * fraction * (1 - fraction))


# rate


@pytest.mark.parametrize("step", [0.25, 0.5, 1.0, 1.5, 2.0, 2.6, 3.46, 4.4])
def test_within_027_bit_of_the_least_an_unbiased_codec_can_spend(step: float) -> None:
    """Check that the rate exceeds the lower bound by at most .27 bit: omega >= 1 / (4^R - 1), so R >= log2(1 + 1 / omega) /
    2. Rates are .7 to 4.1 bits, of 2^20 values, with all bytes counted.
    """
    x = gaussian(1 << 20)
    codec = get_codec(f"dithered:step={step}+ans")
    payload = codec.encode(x, KEY)
    error = codec.decode(payload).astype(np.float64) - x
    omega = np.sum(error**2) / np.sum(x.astype(np.float64) ** 2)
    assert omega == pytest.approx(step**2 / 12, rel=0.01)
    assert 8 * payload.nbytes / x.size - 0.5 * np.log2(1 + 1 / omega) <= 0.27


def test_the_four_runs_of_symbols_are_cheaper_than_the_symbols_together() -> None:
    """Check that coding the four quarters of the dither separately saves .069 bit at step 3, as integrals over the normal
    law predict.
    """
    symbols = Dithered(step=3.0)._symbols(readonly(gaussian(1 << 20)), np.array(WORDS, np.uint64))
    runs = np.split(symbols.codes, 4)
    saved = entropy(symbols.codes) - np.mean([entropy(run) for run in runs])
    edges, masses = np.arange(-8, 9), []
    u = 3.0 * (np.arange(4096) + 0.5) / 8192  # |u|, mirrored to the positive side
    for q in edges:
        masses.append(stats.norm.cdf((q + 0.5) * 3 - u) - stats.norm.cdf((q - 0.5) * 3 - u))
    table = np.array(masses).T
    cost = [-np.sum(p[p > 0] * np.log2(p[p > 0])) for p in (table.mean(0), *(part.mean(0) for part in np.split(table, 4)))]
    assert saved == pytest.approx(cost[0] - np.mean(cost[1:]), abs=0.002)


@pytest.mark.parametrize(("step", "bucket", "bits"), [(0.25, 512, {5, 6}), (1.0, 4096, {3, 4})])
def test_a_plain_payload_spends_whole_bits_a_bucket(step: float, bucket: int, bits: set[int]) -> None:
    """Check the bits per code of buckets of normal values. The largest of 512 values is 2.5 to 4.4, or 10 to 18 steps of
    1/4; the largest of 4096 is 3 to 4.4.
    """
    x = gaussian(1 << 16)
    codec = Dithered(step=step, bucket=bucket)
    payload = codec.encode(x, KEY)
    buckets = x.size // bucket
    widths = np.frombuffer(payload.to_bytes(), np.uint8, buckets, header_nbytes(1) + 24 + 4 * buckets)
    assert payload.nbytes == header_nbytes(1) + 24 + 5 * buckets + int(widths.astype(int).sum()) * bucket // 8
    assert set(widths.tolist()) <= bits


def test_zero_buckets_cost_their_scale_and_decode_to_zeros() -> None:
    payload = get_codec("dithered").encode(np.zeros(40_960, np.float32), KEY)
    assert payload.nbytes == header_nbytes(1) + 24 + 40 + 12
    assert not get_codec("dithered").decode(payload).any()


# escapes


@pytest.mark.sweep
@pytest.mark.parametrize("spec", ["dithered:step=0.03125", "dithered:step=0.03125+ans", "dithered:step=0.25+ans"])
def test_no_value_is_clipped_however_far_out(spec: str) -> None:
    x = gaussian(20_000) * np.float32(0.01)
    x[::1999] = np.float32(100.0) * np.where(np.arange(11) % 2, 1, -1)
    codec = get_codec(spec)
    decoded = codec.decode(codec.encode(x, KEY))
    rms = np.sqrt([np.mean(part.astype(np.float64) ** 2) for part in np.split(x[:16384], 4)])
    step = float(spec.partition("=")[2].partition("+")[0])
    error = np.abs(decoded[:16384].astype(np.float64) - x[:16384]).reshape(4, 4096)
    assert np.all(error <= step * rms[:, None] * 0.5001)
    assert np.abs(x).max() / rms.min() / step > 127


@pytest.mark.sweep
@pytest.mark.parametrize("shape", [(4096,), (513,), (100_000,)])
def test_no_input_needs_more_than_the_stated_bytes(shape: tuple[int]) -> None:
    for spec in ("dithered:step=0.03125", "dithered:step=0.03125+ans", "dithered:step=0.03125,bucket=65536+ans"):
        codec = get_codec(spec)
        for count in (1, shape[0] // 60, shape[0] // 16, shape[0] // 15, shape[0] // 2):
            x = np.full(shape, np.float32(1e-6))
            x[: max(count, 1)] = 1.0
            out = np.empty(codec.max_nbytes(shape), np.uint8)
            decoded = codec.decode(codec.encode(x, KEY, out=out))
            assert np.abs(decoded - x).max() <= 0.02


def test_the_stated_bytes_of_a_chain_are_those_of_the_codes_that_there_can_be() -> None:
    """Check that max_nbytes allows 7 bits per value: 4096 values of RMS r are at most 64 r, or 42.7 steps of 1.5 r, or 43
    with the dither, which gives 87 codes.
    """
    most = get_codec("dithered:step=1.5+ans").max_nbytes((4096,))
    assert 4096 * 7 // 8 < most < 4096 * 7 // 8 + 100


def test_wrong_escapes_are_refused() -> None:
    x = np.full(5000, np.float32(1e-3))
    x[::1000] = 1.0
    codec = get_codec("dithered:step=0.1+zstd")
    data = bytearray(codec.encode(x, KEY).to_bytes())
    at = header_nbytes(1) + 4 + 28
    (escapes,) = struct.unpack_from("<I", data, at)
    assert escapes == 5
    for other in (0, 4, 6, 7, 2**31):
        changed = bytearray(data)
        changed[at : at + 4] = struct.pack("<I", other)
        with pytest.raises(PayloadError):
            codec.decode(Payload.from_bytes(bytes(changed)))


@pytest.mark.parametrize(("step", "bucket"), [(2.0**-5, 4096), (0.04, 512), (0.25, 512), (1.0, 4096)])
def test_a_few_coordinates_fit_into_a_body_whatever_bits_they_need(step: float, bucket: int) -> None:
    """Check that up to 19 values are decoded as by the reader. For 1, 2, 3, 5 and 9 codes, the 7-bit form takes more bytes
    than the 8-bit form.
    """
    codec = Dithered(step, bucket)
    for size in range(1, 20):
        for seed in range(8):
            payload = codec.encode(gaussian(size, seed=seed), KEY)
            np.testing.assert_array_equal(codec.decode(payload).reshape(-1), read(payload.to_bytes()))


# configuration


@pytest.mark.parametrize(
    "setting",
    ["step=0", "step=0.03", "step=65", "step=nan", "step=x", "bucket=0", "bucket=1000", "bucket=131072", "levels=3"],
)
def test_what_cannot_be_configured_is_refused(setting: str) -> None:
    with pytest.raises(CodecSpecError, match=setting.partition("=")[0]):
        get_codec(f"dithered:{setting}")


def test_the_bare_name_has_the_stated_defaults() -> None:
    codec = get_codec("dithered")
    assert codec == Dithered(step=1.0, bucket=4096)
    assert codec.unbiased
    assert get_codec("dithered+ans").unbiased
    assert not codec.lossless
