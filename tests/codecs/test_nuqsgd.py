"""NUQSGD compared with its levels, the variance of an unbiased choice, and an independent reader.

Kernels are compiled for every number of levels and norm, which takes 8 seconds. The tests therefore share a few settings.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pytest

from psnode.codecs import Payload, get_codec
from psnode.codecs.nuqsgd import Nuqsgd
from psnode.codecs.payload import header_nbytes
from psnode.codecs.rng import Key, words
from psnode.codecs.rows.codec import program
from psnode.codecs.table import number_of
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import VALUES, Floats, gaussian, recorded, student
from tests.codecs.golden_store import check_golden
from tests.codecs.powers_oracle import neighbours, read, variance

KEY = Key((3, 4))
# levels and norm, in an order of which samples have the settings that other tests use too: the first two, the fifth, the last
SETTINGS = [(1, "max"), (7, "l2"), (1, "l2"), (3, "max"), (3, "l2"), (7, "max"), (62, "l2"), (62, "max")]
INPUTS = {"gaussian": gaussian(1536), "student": student(1536), "recorded": recorded().reshape(-1)[:1536]}


def norms(x: Floats, kind: str, bucket: int = 512) -> np.ndarray:
    parts = x.astype(np.float64).reshape(-1, bucket)
    return np.repeat(np.sqrt((parts**2).sum(1)) if kind == "l2" else np.abs(parts).max(1), bucket)


@pytest.mark.sweep
@pytest.mark.parametrize("name", INPUTS)
def test_every_value_becomes_one_of_its_two_neighbours(name: str, sampled: Callable[..., list[tuple[int, str]]]) -> None:
    x = INPUTS[name]
    for levels, kind in sampled(SETTINGS):
        codec = Nuqsgd(levels=levels, norm=kind)
        low, high = neighbours(x, norms(x, kind), levels)
        for number in range(20):
            decoded = codec.decode(codec.encode(x, Key.derive(number))).astype(np.float64)
            near = np.minimum(np.abs(np.abs(decoded) - low), np.abs(np.abs(decoded) - high))
            assert np.all(near <= 1e-6 * high), (levels, kind)
            assert np.all(decoded * x >= 0), (levels, kind)


@pytest.mark.sweep
@pytest.mark.parametrize("name", INPUTS)
def test_mean_and_variance_are_those_of_an_unbiased_choice(name: str, sampled: Callable[..., list[tuple[int, str]]]) -> None:
    """Check over 1500 keys that the squared error is within 5 % of theory, and that the means of 8 classes by magnitude are
    within 4 standard errors.

    A share of 1.2e-2 of the seeds would fail one of the 192 means.
    """
    x = INPUTS[name]
    for levels, kind in sampled(SETTINGS):
        codec = Nuqsgd(levels=levels, norm=kind)
        expected = variance(x, norms(x, kind), levels)
        errors = np.array([codec.decode(codec.encode(x, Key.derive(number, "var"))) for number in range(1500)], np.float64) - x
        assert np.mean(np.sum(errors**2, axis=1)) == pytest.approx(expected.sum(), rel=0.05), (levels, kind)
        for part in np.array_split(np.argsort(np.abs(x), kind="stable"), 8):
            sums = (errors[:, part] * np.where(x[part] < 0, -1, 1)).sum(axis=1)
            bound = 4 * np.sqrt(expected[part].sum() / 1500) + 1e-6 * np.abs(x[part]).sum()
            assert abs(sums.mean()) <= bound, (levels, kind)


def test_entries_far_below_the_smallest_level_are_kept_on_average() -> None:
    """Check that the mean of a million entries of 1e-4 of the norm is kept within 4 standard errors, which are 1.7 % of its
    value.

    The norm is within 3e-6 of the largest entry.
    """
    x = np.full(1 << 20, np.float32(1e-4))
    x[::512] = 1.0
    small = np.arange(x.size) % 512 != 0
    codec = Nuqsgd()
    mean = np.mean([codec.decode(codec.encode(x, Key.derive(n)))[small].mean(dtype=np.float64) for n in range(4)])
    assert abs(mean - 1e-4) <= 4 * np.sqrt(1e-4 * 2.0**-7 / (4 * small.sum()))


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_the_scale_of_a_bucket_changes_nothing_but_the_scale(scale: float) -> None:
    """Check that scaling a bucket by a power of two scales at least 999 of 1000 decoded values, inside and outside the range
    that is computed in float32.
    """
    power = np.float32(2.0 ** np.round(np.log2(scale)))
    codec = get_codec("nuqsgd")
    x = gaussian(2048)
    one, other = (codec.decode(codec.encode(y, KEY)) for y in (x, x * power))
    assert np.mean(one * power != other) <= 0.001  # float64 instead of float32 may move a value across a random threshold


@pytest.mark.parametrize("fraction", [0.25, 0.875])
@pytest.mark.parametrize("level", [0, 58])
def test_where_sixteen_bits_end_in_a_tie_the_rest_of_the_value_decides(level: int, fraction: float) -> None:
    """Check how ties are rounded, in rows in which all values except the largest are ties.

    The share of values that are rounded up is `fraction`, within 4 standard errors; 6e-5 of seeds would fail.
    """
    x = np.empty((100, 512), np.float32)
    drawn = words(np.array(KEY.words, np.uint64), number_of("nuqsgd"), 100 * 64).reshape(100, 64, 4).transpose(0, 2, 1)
    sixteen = np.concatenate([drawn.reshape(100, 256) & 0xFFFF, drawn.reshape(100, 256) >> 16], axis=1)
    share = (0xFFFF - sixteen + fraction) / 65536
    x[:] = share * 2.0**-62 if level == 0 else 2.0 ** (level - 63) * (1 + share)
    x[:, 0] = 1
    codec = Nuqsgd(levels=62, norm="max")
    decoded = codec.decode(codec.encode(x.reshape(-1), KEY)).reshape(100, 512)[:, 1:]
    low, high = (0 if level == 0 else 2.0 ** (level - 63)), 2.0 ** (level - 62)
    assert set(np.unique(decoded).tolist()) == {low, high}
    up = int(np.count_nonzero(decoded == high))
    assert abs(up - decoded.size * fraction) <= 4 * np.sqrt(decoded.size * fraction * (1 - fraction))


@pytest.mark.parametrize("levels", [1, 2, 6, 7, 14, 62])
def test_the_payload_has_the_stated_bits(levels: int) -> None:
    """Check the size of payloads. Only a few numbers of levels are encoded, since each needs compiled kernels; for the
    others the program states its size.
    """
    bits = int(np.ceil(np.log2(2 * levels + 3)))
    stated = 8 + 4 * 10 + 5120 * bits // 8
    codec = Nuqsgd(levels=levels, norm="l2" if levels == 7 else "max")
    assert program(codec).nbytes(5120) == stated
    assert codec.max_nbytes((5120,)) == header_nbytes(1) + stated
    if (levels, codec.norm) in SETTINGS:
        assert codec.encode(gaussian(5120), KEY).nbytes == header_nbytes(1) + stated


@pytest.mark.parametrize(
    "spec",
    ["nuqsgd", "nuqsgd:levels=62,norm=max", "nuqsgd:levels=1,bucket=1024,norm=max", "nuqsgd+ans", "nuqsgd:bucket=1024+ans"],
)
def test_an_independent_reader_agrees(spec: str) -> None:
    codec = get_codec(spec)
    for x in (gaussian(5000), recorded(), gaussian(3), *VALUES.values()):
        payload = codec.encode(x, KEY)
        np.testing.assert_array_equal(codec.decode(payload).reshape(-1), read(payload.to_bytes()))


@pytest.mark.parametrize("spec", ["nuqsgd", "nuqsgd+ans"])
def test_golden_bytes(spec: str) -> None:
    check_golden(spec.replace("+", "-"), spec, read)


def rows_of_one_size(scale: float) -> Floats:
    """Return rows of 512 with maximum `scale`, and a shorter last row, so that buckets of any size have this norm if norm=max."""
    x = np.clip(gaussian(5 * 512 + 100), -3, 3)
    x[::512], x[1::512], x[2::512] = 3, 0, 2.0**-30
    return (x / np.float32(3) * np.float32(scale)).astype(np.float32)


@pytest.mark.sweep
@pytest.mark.parametrize("levels", [1, 7, 62])
@pytest.mark.parametrize("scale", [0.0, 2.0**-140, 1.7, 2.0**100])
def test_rows_of_larger_buckets_are_coded_as_buckets_of_512(scale: float, levels: int) -> None:
    """Check that buckets of 512 and of 1024 with equal norms give the same codes, decoded values, errors and sums."""
    x = rows_of_one_size(scale)
    found = []
    for bucket, norm_count in ((512, 6), (1024, 3)):
        codec, error = Nuqsgd(levels, bucket, "max"), np.empty_like(x)
        payload = codec.encode(x, KEY, error=error)
        sums = gaussian(x.size, seed=3)
        codec.decode_add(payload, sums, 0.3)
        codes = payload.body[8 + 4 * norm_count :]
        found.append((codes.tobytes(), codec.decode(payload).tobytes(), error.tobytes(), sums.tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("spec", ["nuqsgd:levels=1,norm=max", "nuqsgd:levels=3", "nuqsgd:levels=62,norm=max"])
def test_an_instance_of_other_settings_decodes_to_the_same_bits(spec: str) -> None:
    for x in (gaussian(5000), recorded(), *VALUES.values()):
        payload = get_codec(spec).encode(x, KEY)
        for other in (get_codec("nuqsgd"), get_codec("nuqsgd:bucket=1024")):
            sums, expected = np.full(x.size, 0.1, np.float32), np.full(x.size, 0.1, np.float32)
            other.decode_add(payload, sums, 0.3)
            get_codec(spec).decode_add(payload, expected, 0.3)
            assert sums.tobytes() == expected.tobytes()
            assert other.decode(payload).tobytes() == get_codec(spec).decode(payload).tobytes()


@pytest.mark.parametrize("spec", ["nuqsgd", "nuqsgd:bucket=1024"])
def test_codes_that_are_not_written_decode_to_zero(spec: str) -> None:
    payload = bytearray(get_codec(spec).encode(gaussian(512), KEY).to_bytes())
    payload[header_nbytes(1) + 12 :] = b"\xff" * (512 * 5 // 8)
    assert not get_codec(spec).decode(Payload.from_bytes(bytes(payload))).any()


@pytest.mark.parametrize(("offset", "value"), [(0, 0), (0, 63), (4, 0), (4, 100), (8, 0x7F800000), (8, 0x80000000)])
def test_fields_out_of_bounds_are_refused(offset: int, value: int) -> None:
    data = bytearray(get_codec("nuqsgd").encode(gaussian(512), KEY).to_bytes())
    struct.pack_into("<I", data, header_nbytes(1) + offset, value)
    with pytest.raises(PayloadError):
        get_codec("nuqsgd").decode(Payload.from_bytes(bytes(data)))


@pytest.mark.parametrize("setting", ["levels=0", "levels=63", "levels=2.5", "bucket=0", "bucket=500", "norm=l1", "step=1"])
def test_what_cannot_be_configured_is_refused(setting: str) -> None:
    with pytest.raises(CodecSpecError, match=setting.partition("=")[0]):
        get_codec(f"nuqsgd:{setting}")
