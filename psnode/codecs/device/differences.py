"""Bitwise comparisons of a codec on a device with the codec on the host, on inputs that are known to be difficult."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from psnode.codecs import Codec
from psnode.codecs.arrays import Floats, Shape
from psnode.codecs.device.change import ChangeOfEntries
from psnode.codecs.rng import Key

if TYPE_CHECKING:
    from psnode.codecs.device.protocols import DeviceEncoder
    from psnode.codecs.rows.coder import Functions
    from psnode.codecs.rows.formula import Program

_SIZE = (1 << 18) + 100  # enough for draws that 16 random bits do not settle; the last row is incomplete
_KEY = Key.derive(1, "trust")
_WEIGHT = 0.3


def difference_of_rows(codec: Codec, program: Program, functions: Functions) -> str:
    """Return a line about the first result of `functions` that differs from that of `codec`, or "" if all bits are equal."""
    from psnode.codecs.rows.codec import preamble
    from psnode.codecs.rows.coder import Coder

    coder, key = Coder(program, functions), np.array(_KEY.words, np.uint64)
    for name, x in inputs():
        error, left = x.copy(), x.copy()
        payload = codec.encode(error, _KEY, error=error)
        expected = payload.body[len(preamble(codec)) :]
        sums, decoded = np.full(x.size, 0.1, np.float32), np.empty(x.size, np.float32)
        added = sums.copy()
        codec.decode_add(payload, sums, _WEIGHT)
        body = np.zeros(program.nbytes(x.size), np.uint8)
        if coder.encode(left, key, body, left) < x.size:
            return f"the device takes values of {name} for not finite"
        coder.decode(expected, decoded, np.float32(1), False)
        coder.decode(expected, added, np.float32(_WEIGHT), True)
        problem = _named(
            name,
            {
                "another payload": (body[: program.length(body, x.size)], expected),
                "another residual": (left, error),
                "other decoded values": (decoded, codec.decode(payload)),
                "other sums": (added, sums),
            },
        )
        if problem:
            return problem
    return ""


def difference_of_encoder(codec: Codec, make: Callable[[Shape], DeviceEncoder], device: torch.device) -> str:
    """Return a line about an encoder's first result on `device` that differs from the host's, or "" if all bits are equal."""
    key = np.array(_KEY.words, np.uint64)
    for name, x in inputs():
        encoder, error = make(x.shape), x.copy()
        payload = codec.encode(error, _KEY, error=error)
        left = torch.zeros(encoder.padded, device=device)
        left[: x.size] = torch.tensor(x).to(device)
        body = np.zeros(codec.max_nbytes(x.shape), np.uint8)
        encoder.encode(left, key, left)
        used = encoder.take(body)
        if not encoder.is_finite:
            return f"the device takes values of {name} for not finite"
        residual: np.ndarray = left[: x.size].cpu().numpy()
        if problem := _named(name, {"another payload": (body[:used], payload.body), "another residual": (residual, error)}):
            return problem
    return ""


def difference_of_entries(codec: Codec, device: torch.device) -> str:
    """Return a line about the first input for which adding on `device` gives other sums than on the host.

    The payload of each input is made by the sparse `codec`. Return an empty string if all bits are equal.
    """
    for name, x in inputs():
        payload, sums = codec.encode(x, _KEY), np.full(x.size, 0.1, np.float32)
        added = torch.tensor(sums).to(device)
        ChangeOfEntries(codec, added).add(payload)
        codec.decode_add(payload, sums)
        if problem := _named(name, {"other sums": (added.cpu().numpy(), sums)}):
            return problem
    return ""


def _named(name: str, pairs: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> str:
    """Return a line about the first pair of arrays in `pairs` whose bits differ, or an empty string if all pairs are equal."""
    for what, (found, wanted) in pairs.items():
        if found.tobytes() != wanted.tobytes():
            return f"the device makes {what} of {name}"
    return ""


def inputs() -> Iterator[tuple[str, Floats]]:
    """Yield named arrays that are known to be difficult.

    These are normal values, with and without 62 % zeros; a few large values; values on levels and half-way between levels;
    values below 2^-126; values of all exponents.
    """
    rng = np.random.default_rng(1)
    normal = rng.standard_normal(_SIZE, np.float32)
    yield "N(0,1)", normal
    yield "62 % zeros", np.where(rng.random(_SIZE) < 0.62, np.float32(0), normal).astype(np.float32)
    yield "few large values", normal**9
    ties = ((np.arange(_SIZE) % 61 - 30) / 2).astype(np.float32)
    ties[::512] = 15
    yield "ties", ties
    few = normal[: 4 * 512 + 100]
    yield "denormals", few * np.float32(2.0**-140)
    yield "all exponents", np.ldexp(np.sign(few), rng.integers(-149, 128, few.size)).astype(np.float32) * np.float32(1.3)
