"""countsketch and countmean compared with a sketch in NumPy; their variances and linearity."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.errors import CodecSpecError, PayloadError
from tests.codecs.family import gaussian, recorded, student
from tests.codecs.golden_store import check_golden
from tests.codecs.sketch_oracle import COUNTMEAN, COUNTSKETCH, hashes, read_sketch

BOTH = ["countsketch", "countmean"]
NUMBERS = {"countsketch": COUNTSKETCH, "countmean": COUNTMEAN}


@pytest.mark.parametrize("spec", [*BOTH, "countsketch:rows=4,ratio=0.3", "countmean:rows=1,ratio=0.5,damped=true"])
def test_a_decoder_in_numpy_reads_the_same(spec: str) -> None:
    codec = get_codec(spec)
    payload = codec.encode(student(3000), Key.derive(5))
    np.testing.assert_allclose(codec.decode(payload), read_sketch(payload.to_bytes()), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", BOTH)
def test_golden_bytes(name: str) -> None:
    check_golden(name, name, read_sketch)


@pytest.mark.parametrize("name", BOTH)
def test_cells_are_the_signed_sums(name: str) -> None:
    x, key = student(2000), Key.derive(8)
    payload = get_codec(f"{name}:rows=3,ratio=0.06").encode(x, key)
    cells = payload.body[24:].view(np.float32).reshape(3, 40)
    for row in range(3):
        column, sign = hashes(key.words, NUMBERS[name] + 256 * row, x.size, 40)
        np.testing.assert_allclose(cells[row], np.bincount(column.astype(int), sign * x, 40), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
def test_the_variance_of_the_mean_is_that_of_its_cells(rows: int) -> None:
    """Check that E||decode - x||^2 is (d - 1) / cells ||x||^2 for d coordinates, over 60 keys, within 4 standard errors,
    each below 1.5 %.
    """
    x = student(4000).astype(np.float64)
    codec = get_codec(f"countmean:rows={rows},ratio=0.2")
    cells = rows * round(0.2 * x.size / rows)
    losses = []
    for number in range(60):
        decoded = codec.decode(codec.encode(x.astype(np.float32), Key.derive(number)))
        losses.append(np.sum((decoded - x) ** 2) / np.sum(x**2))
    assert np.mean(losses) == pytest.approx((x.size - 1) / cells, rel=0.06)


def test_the_variance_of_the_median_is_that_of_order_statistics() -> None:
    """Check the mean squared error over 60 keys within 5 %: the median of 5 normal values has .2868 of the variance of one
    value.

    Each cell holds many equal coordinates, so sums are nearly normal.
    """
    grid = np.linspace(-8, 8, 20_001)
    density = 30 * norm.cdf(grid) ** 2 * norm.sf(grid) ** 2 * norm.pdf(grid)
    share = float(np.sum(grid**2 * density) * (grid[1] - grid[0]))
    assert share == pytest.approx(0.2868, abs=1e-4)
    x = np.ones(4000, np.float32)
    codec = get_codec("countsketch:rows=5,ratio=0.1")
    losses = [np.mean((codec.decode(codec.encode(x, Key.derive(number))) - 1.0) ** 2) for number in range(60)]
    assert np.mean(losses) == pytest.approx(share * 3999 / 80, rel=0.05)


def test_one_large_coordinate_among_few_is_found_exactly_by_the_median() -> None:
    """Check that the coordinate 100 among nine ones is decoded exactly. It is alone in its cell in most of 5 rows with a
    probability above 1 - 2e-5.
    """
    x = np.zeros(10_000, np.float32)
    x[::1000] = 1
    x[5000] = 100
    codec = get_codec("countsketch")
    assert codec.decode(codec.encode(x, Key.derive(3)))[5000] == 100


@pytest.mark.parametrize("name", BOTH)
def test_merged_sketches_are_the_sketch_of_the_sum(name: str) -> None:
    codec, key = get_codec(name), Key.derive(2)
    parts = [student(5000, seed=seed) for seed in range(4)]
    merged = codec.merge([codec.encode(part, key) for part in parts])
    together = codec.encode(np.sum(parts, axis=0, dtype=np.float64).astype(np.float32), key)
    assert merged.nbytes == together.nbytes
    np.testing.assert_allclose(codec.decode(merged), codec.decode(together), atol=1e-4)


def test_countmean_decodes_a_sum_to_the_sum_of_what_is_decoded() -> None:
    codec, key = get_codec("countmean:damped=true"), Key.derive(2)
    payloads = [codec.encode(student(5000, seed=seed), key) for seed in range(4)]
    np.testing.assert_allclose(codec.decode(codec.merge(payloads)), sum(map(codec.decode, payloads)), atol=1e-4)


@pytest.mark.parametrize("name", BOTH)
def test_sketches_under_different_keys_or_of_different_shapes_are_not_merged(name: str) -> None:
    codec = get_codec(name)
    payload = codec.encode(gaussian(500), Key.derive(1))
    others = [codec.encode(gaussian(500), Key.derive(2)), codec.encode(gaussian(25, 20), Key.derive(1))]
    others.append(get_codec(f"{name}:rows=1,ratio=0.1").encode(gaussian(500), Key.derive(1)))
    for other in others:
        with pytest.raises(PayloadError, match="merged"):
            codec.merge([payload, other])
    with pytest.raises(PayloadError, match="nothing"):
        codec.merge([])


@pytest.mark.parametrize("name", BOTH)
def test_full_scale_sketches_merge_to_finite_ones(name: str) -> None:
    codec = get_codec(name)
    payload = codec.encode(np.full(50, 1e38, np.float32), Key.derive(1))
    assert np.isfinite(codec.decode(codec.merge([payload] * 100))).all()


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("x", [gaussian(3000), student(3000), recorded().reshape(-1)], ids=["gaussian", "student", "recorded"])
def test_the_damped_form_is_the_best_multiple_of_the_other(name: str, x: np.ndarray) -> None:
    plain, damped = get_codec(name), get_codec(name).contractive()
    q = plain.decode(plain.encode(x, Key.derive(4))).astype(np.float64)
    best = np.dot(x, q) / np.dot(q, q) * q
    np.testing.assert_allclose(damped.decode(damped.encode(x, Key.derive(4))), best, rtol=1e-4, atol=1e-5 * np.abs(best).max())
    assert not damped.unbiased
    assert plain.unbiased


@pytest.mark.parametrize("name", BOTH)
def test_bytes_are_those_of_the_cells(name: str) -> None:
    codec = get_codec(f"{name}:rows=4,ratio=0.05")
    assert codec.encode(gaussian(10_000), Key.derive(0)).nbytes == 12 + 24 + 4 * 500 == codec.max_nbytes((10_000,))


@pytest.mark.parametrize("settings", ["rows=0", "rows=17", "ratio=0", "ratio=1.1", "ratio=nan", "rows=2.5", "columns=3"])
@pytest.mark.parametrize("name", BOTH)
def test_what_cannot_be_configured_is_refused(name: str, settings: str) -> None:
    with pytest.raises(CodecSpecError, match=name):
        get_codec(f"{name}:{settings}")


@pytest.mark.parametrize("field", [b"\x00\x00\x00\x00", b"\x11\x00\x00\x00", b"\xff\xff\xff\xff"])
@pytest.mark.parametrize("at", [16, 20])
def test_rows_and_columns_that_do_not_fit_are_refused(at: int, field: bytes) -> None:
    codec = get_codec("countsketch")
    data = bytearray(codec.encode(gaussian(500), Key.derive(1)).to_bytes())
    data[12 + at : 16 + at] = field
    with pytest.raises(PayloadError, match="rows"):
        codec.decode(Payload.from_bytes(bytes(data)))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_cell_that_is_not_finite_is_refused(value: float) -> None:
    codec = get_codec("countmean")
    data = bytearray(codec.encode(gaussian(500), Key.derive(1)).to_bytes())
    data[-4:] = np.float32(value).tobytes()
    with pytest.raises(PayloadError, match="finite"):
        codec.decode(Payload.from_bytes(bytes(data)))
