"""Inputs for measurements of codecs: two distributions, and gradients saved by `psnode bench record`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from psnode.codecs import Codec
from psnode.codecs.arrays import Floats
from psnode.errors import ConfigurationError

_MATRIX = (512, 4608)  # a 3x3 convolution of 512 to 512 channels
_SEED = 1


class Input(NamedTuple):
    """Values on which codecs are measured, as one vector and as tensors.

    `flat`: for codecs of flat vectors. `tensors`: for codecs that need shapes and encode one tensor at a time. `flat` begins
    with the values of the tensors, one tensor after the other.
    """

    name: str
    flat: Floats
    tensors: list[Floats]

    def parts(self, codec: Codec) -> list[Floats]:
        """Return the arrays on which `codec` is measured, each the input of one call of encode."""
        return self.tensors if codec.shaped else [self.flat]

    def parts_of(self, flat: Floats, codec: Codec) -> list[Floats]:
        """Return views of `flat`, an array as large as this input, with the shapes that `parts` has for `codec`."""
        if not codec.shaped:
            return [flat]
        ends = np.cumsum([tensor.size for tensor in self.tensors])
        pieces = zip(np.split(flat[: ends[-1]], ends[:-1]), self.tensors, strict=True)
        return [piece.reshape(tensor.shape) for piece, tensor in pieces]


def gaussian(size: int) -> Input:
    """Return an input of `size` values of N(0, 1)."""
    flat = np.random.default_rng(_SEED).standard_normal(size, np.float32)
    return Input("gaussian", flat, [_matrix(flat)])


def student(size: int) -> Input:
    """Return an input of `size` values of Student's t distribution with 3 degrees of freedom."""
    flat = np.random.default_rng(_SEED).standard_t(3, size).astype(np.float32)
    return Input("student", flat, [_matrix(flat)])


def _matrix(flat: Floats) -> Floats:
    rows = min(_MATRIX[0], max(1, int(flat.size**0.5)))
    columns = min(_MATRIX[1], flat.size // rows)
    return flat[: rows * columns].reshape(rows, columns).copy()


def recorded(path: Path) -> Input:
    """Return the input that a file of `psnode bench record` holds: its tensors with at least two dimensions.

    Raises ConfigurationError for a file without such tensors, or with values that are not finite or all zero.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigurationError(f"--gradient {path} cannot be read: {error}; psnode bench record writes such a file") from error
    kept = [np.ascontiguousarray(each, np.float32) for each in tensors.values() if each.ndim > 1 and each.size]
    if not kept:
        raise ConfigurationError(f"--gradient {path} has no tensor with two dimensions or more: there is nothing to compress")
    flat = np.concatenate([each.reshape(-1) for each in kept])
    if not np.isfinite(flat).all() or not flat.any():
        raise ConfigurationError(f"--gradient {path} has values that are not finite, or zeros alone: record another one")
    return Input(path.stem, flat, kept)
