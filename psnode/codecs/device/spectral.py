"""Spectral ATOMO on a device: a matrix is factorised on its device, and only the factors of the drawn terms go to the host.

Three things are copied to the host: the singular values (8 bytes for each row of the short side), the factors as float32, which
form the payload, and 24 bytes about the array. The host draws the terms with the functions and the random words of
psnode.codecs.svd. A stage after svd, as in `svd+qsgd`, codes the factors on the host. Decoded values have the same bits on
every device and host, because they are float32 products and sums, each a separate torch operation. The factors that the device
computes differ from the host's in their last bits, just as the factors of two machines do.

With `method=deflated` the device samples terms of the exact spectrum instead, because the deflated method only saves time on a
CPU and does not reduce the variance.

If the sum of the terms might exceed float32's range (gradients beyond 1e36), the factors are copied to the host as float64, and
the host's own function scales them down.
"""

from __future__ import annotations

import math
from typing import TypeAlias, TypeGuard

import numpy as np
import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Floats, Shape, Words, readonly
from psnode.codecs.chain import Chain
from psnode.codecs.contractive import Contractive
from psnode.codecs.device.spectra import DeviceSpectrum, sketch, spectrum, trim
from psnode.codecs.lowrank.factors import fold, unfold
from psnode.codecs.lowrank.rank_one import may_overflow, write_saturated
from psnode.codecs.payload import body_of
from psnode.codecs.svd import SIDE, Svd, sizes

Spectral: TypeAlias = Svd | Chain  # svd, or a chain that begins with it

_BLOCK = 1 << 22  # values of a sum of terms that are computed at a time
_TINY = float(np.finfo(np.float64).tiny)


def svd_of(codec: Codec) -> Svd | None:
    """Return the svd stage of `codec`: the codec itself, the first stage of a chain, or None if it has no svd."""
    first = codec.reducer if isinstance(codec, Chain) else codec
    return first if isinstance(first, Svd) else None


def is_spectral(codec: Codec) -> TypeGuard[Spectral]:
    """Return True if `codec` is svd or a chain that begins with svd."""
    return svd_of(codec) is not None


class SpectralEncoder:
    """Encoder, on `device`, of arrays of `shape` by `codec`, which is svd or a chain that begins with svd."""

    def __init__(self, codec: Spectral, shape: Shape, device: torch.device) -> None:
        svd = svd_of(codec)
        assert svd is not None, codec
        self._codec, self._svd, self._shape, self._device = codec, svd, shape, device
        self.padded = math.prod(shape)
        self._body = np.zeros(codec.max_nbytes(shape), np.uint8)
        self._used = 0
        self.is_finite = True

    def encode(self, x: torch.Tensor, key: Words, error: torch.Tensor | None = None) -> None:
        """Code `x` (flat float32), and write x - decoded to `error`, which may be `x`. Waits for the singular values.

        If a value is not finite, `is_finite` becomes False, and nothing else changes.
        """
        extremes = torch.stack(torch.aminmax(x[: self.padded]))
        self.is_finite = bool(np.isfinite(extremes.cpu().numpy()).all())
        if not self.is_finite:
            return
        split, m, n = self._svd.cut(self._shape)
        if split:
            terms, values = self._reduce(x[: self.padded].reshape(m, n), key)
        else:
            terms, values = 0, readonly(x[: self.padded].cpu().numpy())
        self._body[4 : 4 + SIDE].view(np.uint16)[:] = split, terms
        self._used = self._codec.joined(SIDE, values, key, self._body)
        if error is not None:
            if error.data_ptr() != x.data_ptr():
                error.copy_(x)
            parts = self._codec.parted(readonly(self._body[: self._used]), self._shape)
            add_parted(*parts, self._shape, error[: self.padded], np.float32(-1))

    def take(self, out: Bytes) -> int:
        """Write the body to `out` and return its length. Waits for the work that was given to the stream."""
        out[: self._used] = self._body[: self._used]
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        return self._used

    def _reduce(self, matrix: torch.Tensor, key: Words) -> tuple[int, Floats]:
        """Return the number of drawn terms, and their factors on the host, in the form that lowrank.factors.fold returns."""
        found = self._find(matrix, key)
        chosen, probabilities = self._svd.choose(found.values, key)
        left, right = found.terms(chosen)
        values = readonly(_folded(left, right, torch.tensor(probabilities).to(self._device)).cpu().numpy())
        if may_overflow(*unfold(values, chosen.size, *matrix.shape)):
            values = readonly(fold(left.cpu().numpy(), right.cpu().numpy(), probabilities))
        return chosen.size, values

    def _find(self, matrix: torch.Tensor, key: Words) -> DeviceSpectrum:
        svd, core = self._svd, trim(matrix)
        if svd.method == "randomised" or not (svd.method == "exact" or svd.sample):
            return sketch(core, math.ceil(svd.rank), key, cover=svd.cover)
        return spectrum(core)


class SpectralChange:
    """Addition of payloads of `codec` to `weights`, a flat float32 tensor on a device, with the same bits as `codec.decode_add`.

    Only the factors are copied to the device. `codec` is svd, a chain that begins with svd, or the contractive form of either.
    If the factor of a contractive form exceeds 1, the host decodes the payload, because its values might exceed float32's
    range.
    """

    def __init__(self, codec: Codec, weights: torch.Tensor) -> None:
        inner = codec.codec if isinstance(codec, Contractive) else codec
        assert isinstance(inner, Svd | Chain) and svd_of(inner) is not None, codec
        self._codec, self._inner, self._weights = codec, inner, weights

    def add(self, payload: Payload) -> None:
        """Add the decoded values to the weights. Raise PayloadError and leave the weights unchanged if the payload is invalid."""
        body = body_of(self._codec, payload, self._weights.numel())
        if not payload.size:
            return
        scale = np.float32(1)
        if isinstance(self._codec, Contractive):
            scale, body = self._codec.split(body)
        if abs(scale) > 1:
            self._weights.add_(torch.tensor(self._codec.decode(payload).reshape(-1)).to(self._weights.device))
        else:
            add_parted(*self._inner.parted(body, payload.shape), payload.shape, self._weights, scale)


def add_terms(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, weight: np.float32) -> None:
    """Add `weight` times the sum of r terms to `out` (m, n). The terms have the factors left (r, m) and right (r, n).

    The result equals that of lowrank.rank_one.add_terms. Products and sums are separate operations, so that no compiler
    contracts them to one operation that rounds once.
    """
    (rank, m), n = left.shape, right.shape[1]
    step = max(1, _BLOCK // max(n, 1))
    for at in range(0, m if rank else 0, step):
        total = left[0, at : at + step, None] * right[0]
        for column, row in zip(left[1:, at : at + step, None], right[1:], strict=True):
            total.add_(column * row)
        out[at : at + step].add_(total.mul_(float(weight)))


def add_parted(side: Bytes, values: Floats, shape: Shape, out: torch.Tensor, weight: np.float32) -> None:
    """Add `weight` times an array to `out` (flat). `side` and `values` are the array's side information and values under svd."""
    split, terms, m, n = sizes(side, shape)
    if not split:
        out.add_(torch.tensor(values).to(out.device).mul_(float(weight)))
        return
    left, right = unfold(values, terms, m, n)
    if may_overflow(left, right):
        decoded = np.empty((m, n), np.float32)
        write_saturated(left, right, decoded)
        out.add_(torch.from_numpy(decoded.reshape(-1)).to(out.device).mul_(float(weight)))
    else:
        add_terms(torch.tensor(left).to(out.device), torch.tensor(right).to(out.device), out.reshape(m, n), weight)


def _folded(left: torch.Tensor, right: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
    """Return the result of psnode.codecs.lowrank.factors.fold, computed on a device, as flat float32.

    Terms are not scaled down.
    """
    m, n = left.shape[1], right.shape[1]
    lengths_left, lengths_right = (torch.linalg.vector_norm(side, dim=1).clamp_min(_TINY) for side in (left, right))
    scale = (lengths_right / lengths_left / probabilities).sqrt() * (m / n) ** 0.25
    values = torch.cat([left * scale[:, None], right / (scale * probabilities)[:, None]], dim=1)
    return values.float().reshape(-1)
