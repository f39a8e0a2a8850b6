"""Sums by torch's operations give the same bits as the host's kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from psnode.codecs.device import tree_sums
from psnode.codecs.kernels import dots
from tests.codecs.family import gaussian
from tests.codecs.test_dots import expected, inputs, total, tree

SIZES = [1, 511, 512, 513, 6 * 512 + 700, 512 * 512 + 3]


@pytest.mark.parametrize("size", SIZES)
def test_products_are_the_hosts(size: int) -> None:
    for name, x in inputs(size).items():
        y = gaussian(size, seed=3) * np.abs(x).max()
        found = tuple(tree_sums.tree_products(torch.from_numpy(x.copy()), torch.from_numpy(y)).tolist())
        assert found == dots.tree_products(x, y) == expected(x, y), name


@pytest.mark.parametrize("size", SIZES)
def test_squares_are_the_hosts(size: int) -> None:
    for name, x in {**inputs(size), "the largest": np.full(size, np.finfo(np.float32).max, np.float32)}.items():
        wide = np.concatenate([x, np.zeros(-size % 512, np.float32)]).astype(float)
        found = float(tree_sums.square_sum(torch.from_numpy(x.copy())))
        assert found == dots.square_sum(x) == total(tree(wide * wide)), name
        assert found == pytest.approx(float(np.dot(x.astype(float), x.astype(float))), rel=1e-12)


def test_stretches_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_sums, "_BLOCK", 1024)
    x, y = gaussian(20_000), gaussian(20_001)[1:].copy()
    assert tuple(tree_sums.tree_products(torch.from_numpy(x), torch.from_numpy(y)).tolist()) == dots.tree_products(x, y)
    assert float(tree_sums.square_sum(torch.from_numpy(x))) == dots.square_sum(x)


def test_of_nothing_the_sum_is_0() -> None:
    assert dots.square_sum(np.empty(0, np.float32)) == 0
