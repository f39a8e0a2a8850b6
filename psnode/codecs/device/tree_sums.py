"""Sums of arrays on a device in the order of the trees of psnode.codecs.kernels. Each torch operation rounds separately."""

from __future__ import annotations

import torch

from psnode.codecs.kernels.dots import LEAST
from psnode.codecs.kernels.trees import ROW

_BLOCK = 8192 * ROW  # values processed at a time; temporary memory is several times as large
_LARGEST = torch.finfo(torch.float32).max


def tree_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return <x, y> and <y, y> of flat, nonempty float32 arrays of equal size, as kernels.dots.tree_products does.

    Waits for the device once for every 2^22 values.
    """
    parts = [_products(_rows(a), _rows(b)) for a, b in zip(torch.split(x, _BLOCK), torch.split(y, _BLOCK), strict=True)]
    return _total(torch.cat(parts, dim=1))


def square_sum(x: torch.Tensor) -> torch.Tensor:
    """Return <x, x> of a flat, nonempty float32 array, as a tensor on the device, as kernels.dots.square_sum does.

    Does not wait.
    """
    parts = [_fold(_rows(part).double().square_()) for part in torch.split(x, _BLOCK)]
    return _total(torch.cat(parts)[None])[0]


def _products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return <x, y> and <y, y> of each row of 512 values."""
    xy, yy = _fold(x * y).double(), _fold(y * y).double()
    careful = ~((yy >= LEAST) & (yy <= _LARGEST) & (xy.abs() <= _LARGEST))
    if bool(careful.any()):
        a, b = x[careful].double(), y[careful].double()
        xy[careful], yy[careful] = _fold(a * b), _fold(b * b)
    return torch.stack([xy, yy])


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return the values as rows of 512. The last row is padded with zeros."""
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % ROW)).reshape(-1, ROW)


def _fold(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row of 512 values, in the data type of the rows."""
    eighths = rows.reshape(-1, 8, 64)
    while eighths.shape[1] > 1:
        eighths = eighths[:, ::2] + eighths[:, 1::2]
    lanes = eighths.reshape(-1, 4, 16)
    sums = (lanes[:, 0] + lanes[:, 1]) + (lanes[:, 2] + lanes[:, 3])
    while sums.shape[1] > 1:
        sums = sums[:, ::2] + sums[:, 1::2]
    return sums[:, 0]


def _total(parts: torch.Tensor) -> torch.Tensor:
    """Return the total of each row of `parts`, which is added up 512 numbers at a time."""
    count = parts.shape[0]
    while parts.shape[1] > 1:
        parts = _fold(_rows(parts)).reshape(count, -1)
    return parts[:, 0] + 0.0
