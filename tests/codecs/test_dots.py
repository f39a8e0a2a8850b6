"""Inner products of arrays with their decoded form: every kernel adds in the same order."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.kernels.dots import tree_products
from psnode.codecs.rng import Key
from psnode.codecs.sinks import InnerProducts
from tests.codecs.family import gaussian

LEAST = 2.0**-100
BY_KERNELS = ["qsgd", "qsgd:levels=300", "qsgd:bucket=300", "qsgd:bucket=2000", "minmax", "minmax:bits=8", "natural", "nuqsgd"]
OTHERS = ["nuqsgd:bucket=1024", "terngrad", "terngrad:clip=2.5", "dithered", "dithered:step=4,bucket=512", "qsgd+ans", "polar"]


def tree(values: np.ndarray) -> np.ndarray:
    """Return the sum of each row of 512 values, added in the order of the kernels, in the values' dtype."""
    lanes = values.reshape(-1, 8, 64)
    while lanes.shape[1] > 1:
        lanes = lanes[:, ::2] + lanes[:, 1::2]
    folded = lanes.reshape(-1, 4, 16)
    sums = (folded[:, 0] + folded[:, 1]) + (folded[:, 2] + folded[:, 3])
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    return sums[:, 0]


def total(parts: np.ndarray) -> float:
    """Return the sum of `parts`, by rounds in which 512 values become one, until one number is left."""
    while parts.size > 1:
        parts = tree(np.concatenate([parts, np.zeros(-parts.size % 512)]))
    return float(parts[0])


def expected(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return <x, y> and <y, y>. Rows are summed in float32, or in float64 if float32 might lose precision."""
    x, y = (np.concatenate([v.reshape(-1), np.zeros(-v.size % 512, np.float32)]) for v in (x, y))
    with np.errstate(over="ignore", invalid="ignore"):
        xy, yy = tree(x * y).astype(float), tree(y * y).astype(float)
        careful = ~((yy >= LEAST) & np.isfinite(yy) & np.isfinite(xy))
    wide = x.astype(float), y.astype(float)
    xy[careful], yy[careful] = tree(wide[0] * wide[1])[careful], tree(wide[1] * wide[1])[careful]
    return total(xy), total(yy)


def inputs(size: int) -> dict[str, np.ndarray]:
    x = gaussian(size)
    rows = np.float32(10.0) ** (np.arange(size) // 512 % 3 * 30 - 30).astype(np.float32)
    return {
        "gaussian": x,
        "large": x * np.float32(1e30),
        "small": x * np.float32(1e-30),
        "denormals": x * np.float32(2.0**-140),
        "rows of all sizes": x * rows,
        "zeros": np.zeros(size, np.float32),
        "a row of zeros": np.where(np.arange(size) // 512 == 1, np.float32(0), x),
    }


@pytest.mark.parametrize("size", [1, 511, 512, 513, 5 * 512, 4096 + 700])
@pytest.mark.parametrize("spec", BY_KERNELS + OTHERS)
def test_products_have_one_order(spec: str, size: int) -> None:
    codec, key = get_codec(spec), Key.derive(1)
    for name, x in inputs(size).items():
        dots = InnerProducts()
        payload = codec.encode(x, key, sink=dots)
        assert payload == codec.encode(x, key)
        assert (dots.xy, dots.yy) == expected(x, codec.decode(payload)), name


@pytest.mark.parametrize("spec", ["entrywise", "topk:ratio=0.3+qsgd"])
def test_of_sparse_codecs_the_entries_are_the_coordinates(spec: str) -> None:
    codec, key = get_codec(spec), Key.derive(2)
    for name, x in inputs(40_000).items():
        dots = InnerProducts()
        payload = codec.encode(x, key, sink=dots)
        if (sent := codec.entries(payload)) is not None and sent.indices.size:
            assert (dots.xy, dots.yy) == expected(x[sent.indices], sent.values), name


def test_more_than_one_tree_of_rows() -> None:
    x, y = gaussian(512 * 512 + 700), gaussian(512 * 512 + 701)[1:]
    assert tree_products(x, y) == expected(x, y)
    np.testing.assert_allclose(tree_products(x, y), (np.dot(x.astype(float), y), np.dot(y.astype(float), y)), rtol=1e-5)


def test_nothing_overflows_or_vanishes() -> None:
    for scale in (np.finfo(np.float32).max, np.float32(2.0**-149)):
        x = np.full(3000, scale, np.float32)
        xy, yy = tree_products(x, -x)
        assert (xy, yy) == (-yy, pytest.approx(3000 * float(scale) ** 2, rel=1e-12))
    assert tree_products(np.empty(0, np.float32), np.empty(0, np.float32)) == (0, 0)
