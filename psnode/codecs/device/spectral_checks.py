"""Checks of spectral ATOMO on a device: torch's linear algebra must give the same terms on the device as on the CPU.

The last bits of factors may differ, so the checks use matrices with well-separated terms. Under the same key, device and CPU
must draw the same terms, and the sums of the terms must be nearly equal. A payload must decode to the same bits on the device
as on the host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Floats, Words
from psnode.codecs.chain import Chain
from psnode.codecs.contractive import Contractive, factor
from psnode.codecs.device.change import decoder
from psnode.codecs.device.contractive_forms import spectral_encoder
from psnode.codecs.device.spectral import SpectralChange, svd_of
from psnode.codecs.kernels.dots import tree_products
from psnode.codecs.payload import assemble
from psnode.codecs.rng import Key
from psnode.codecs.svd import Svd
from psnode.errors import PayloadError, in_one_line

NEAR = 1e-4  # relative to the norm of the decoded matrix: far above float32 rounding, far below a wrong term or scale
_RANK = 8  # maximum, so that small matrices have enough terms
_KEYS = [Key.derive(seed, "trust") for seed in range(2)]


def problem(codec: Codec, device: torch.device) -> str:
    """Return a line about the first result on `device` that differs from the CPU's; empty if there is no difference."""
    inner = decoder(codec)
    svd = svd_of(inner)
    assert svd is not None, codec
    small = dataclasses.replace(svd, rank=min(svd.rank, _RANK))
    whole: Codec = dataclasses.replace(inner, reducer=small) if isinstance(inner, Chain) else small
    if inner is not codec:
        whole = Contractive(whole)
    try:
        return next(_differences(whole, small, device), "")
    except Exception as error:  # a library, a driver or a device may raise any exception
        return f"its linear algebra failed: {in_one_line(error)}"


def coded(codec: Codec, x: Floats, key: Key, device: torch.device) -> tuple[Payload, Floats]:
    """Return the payload that `device` makes of `x`, and x - decoded.

    Raise PayloadError if the device takes `x` for not finite.
    """
    encoder, there = spectral_encoder(codec, x.shape, device), torch.tensor(x.reshape(-1)).to(device)

    def write(words: Words, body: Bytes) -> int:
        encoder.encode(there, words, there)
        if not encoder.is_finite:
            raise PayloadError("the device takes values for not finite")
        return encoder.take(body)

    return assemble(codec, x.shape, key, write), there.cpu().numpy().reshape(x.shape)


def _differences(codec: Codec, svd: Svd, device: torch.device) -> Iterator[str]:
    reference = dataclasses.replace(svd, method="exact") if svd.method == "deflated" and svd.sample else svd
    for name, x in inputs():
        for key in _KEYS:
            expected = reference.decode(reference.encode(x, key)).astype(np.float64)
            payload, error = coded(codec, x, key, device)
            found = svd.decode(payload if codec == svd else coded(svd, x, key, device)[0])
            if not np.linalg.norm(found - expected) <= NEAR * np.linalg.norm(expected):
                yield f"the device makes other terms of {name}"
            if isinstance(codec, Contractive) and codec.split(payload.body)[0] != _factor(codec, payload, x):
                yield f"the device makes another factor of {name}"
            if error.tobytes() != (x - codec.decode(payload)).tobytes():
                yield f"the device makes another residual of {name}"
            sums = np.full(x.shape, 0.1, np.float32)
            there = torch.tensor(sums.reshape(-1)).to(device)
            SpectralChange(codec, there).add(payload)
            codec.decode_add(payload, sums)
            if there.cpu().numpy().tobytes() != sums.tobytes():
                yield f"the device makes other sums of {name}"
    bad = spectral_encoder(codec, (40, 60), device)
    for value in (np.inf, np.nan):
        x = np.zeros(2400, np.float32)
        x[7] = value
        bad.encode(torch.tensor(x).to(device), np.array(_KEYS[0].words, np.uint64))
        if bad.is_finite:
            yield f"the device takes {value} for finite"


def _factor(codec: Contractive, payload: Payload, x: Floats) -> np.float32:
    """Return the factor of the contractive form, computed on the host for the wrapped body in `payload`."""
    decoded = np.empty(x.shape, np.float32)
    codec.codec._decode(codec.split(payload.body)[1], decoded)
    return factor(*tree_products(x, decoded))


def inputs() -> Iterator[tuple[str, Floats]]:
    """Yield named matrices with well-separated singular values.

    These are a wide matrix, a tall one with zeros, a square one with values near 1e30, and a convolution's weight with values
    near 1e-30.
    """
    rng = np.random.default_rng(1)

    def decaying(m: int, n: int) -> Floats:
        left, right = (np.linalg.qr(rng.standard_normal((side, 24)))[0] for side in (m, n))
        return np.asarray((left * 0.7 ** np.arange(24)) @ right.T, np.float32)

    yield "a wide matrix", decaying(96, 160)
    tall = decaying(160, 96)
    tall[::5], tall[:, 3:9] = 0, 0
    yield "a tall matrix with zeros", tall
    yield "large values", decaying(96, 96) * np.float32(1e30)
    yield "small values", (decaying(64, 216) * np.float32(1e-30)).reshape(64, 24, 3, 3)
