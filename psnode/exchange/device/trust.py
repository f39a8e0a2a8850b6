"""A check of kernels on the device that is to run them: does it give the processor's payloads, decoded values and residuals?

What was found good is remembered by the kernels' text, device, driver and versions; what differs is tried again each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from psnode.codecs import Codec
from psnode.codecs.arrays import Floats
from psnode.codecs.rng import Key
from psnode.errors import in_one_line
from psnode.exchange.device.coder import OnDevice, kernels_for

if TYPE_CHECKING:
    from psnode.codecs.rows.coder import Functions
    from psnode.codecs.rows.formula import Program
    from psnode.exchange.device.coder import CodecKernels

_SIZE = (1 << 18) + 100  # enough for draws that 16 random bits do not settle; the last row is not full
_KEY = Key.derive(1, "trust")
_WEIGHT = 0.3


class Verdict(NamedTuple):
    """Result of a check of a codec with a formula: its kernels, or in one line why they are not used."""

    spec: str
    kernels: CodecKernels | None
    problem: str = ""
    is_known: bool = False  # from an earlier check of the same kernels on such a device

    @property
    def line(self) -> str:
        """A line for a log or the doctor."""
        if self.kernels is None:
            return f"{self.spec} is coded on the host: {self.problem}"
        return f"{self.spec}: the device gives the processor's bytes" + (" (checked before)" if self.is_known else "")


def check(codec: Codec, device: torch.device, *, anew: bool = False) -> Verdict | None:
    """Compare `codec` on `device` with itself on the host; None if it has no formula. `anew`: whatever is remembered.

    ConfigurationError if CuPy is absent; everything else that fails makes a verdict.
    """
    from psnode.codecs.rows.compiled import write_whole
    from psnode.codecs.rows.cuda_text import text_of
    from psnode.codecs.rows.cupy_kernels import Identity, import_cupy, standalone

    import_cupy()
    try:
        if (found := kernels_for(codec, device)) is None:
            return None
        program, kernels = found
        mark = Identity.of(device.index or 0).file(standalone(text_of(program)), f".{codec.id}.trusted")
        if not anew and mark.is_file():
            return Verdict(repr(codec), found, is_known=True)
        problem = difference(codec, program, OnDevice(kernels, device))
        if not problem:
            write_whole(mark, b"")
    except Exception as error:  # whatever a compiler, a driver or a device may say
        problem = f"its kernels failed: {in_one_line(error)}"
    return Verdict(repr(codec), None if problem else found, problem)


def summary() -> dict[str, list[str]]:
    """Check all codecs of psnode's on every CUDA device here: `good` specs, and `problems` in a line each."""
    from psnode.codecs import available, get_codec

    good, problems = [], []
    for number in range(torch.cuda.device_count()):
        for verdict in check_all(map(get_codec, available()), torch.device("cuda", number), anew=True):
            if verdict.problem:
                problems.append(verdict.line)
            else:
                good.append(verdict.spec)
    return {"good": sorted(set(good)), "problems": problems}


def check_all(codecs: Iterable[Codec], device: torch.device, *, anew: bool = False) -> list[Verdict]:
    """`check` each of those that have a formula. ConfigurationError if CuPy is absent."""
    return [verdict for codec in codecs if (verdict := check(codec, device, anew=anew)) is not None]


def difference(codec: Codec, program: Program, functions: Functions) -> str:
    """Name what `functions` make otherwise than `codec` itself does; empty if all bits are equal."""
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
        pairs: dict[str, tuple[np.ndarray, np.ndarray]] = {
            "another payload": (body[: program.length(body, x.size)], expected),
            "another residual": (left, error),
            "other decoded values": (decoded, codec.decode(payload)),
            "other sums": (added, sums),
        }
        for what, (found, wanted) in pairs.items():
            if found.tobytes() != wanted.tobytes():
                return f"the device makes {what} of {name}"
    return ""


def inputs() -> Iterator[tuple[str, Floats]]:
    """N(0,1); the same with 62 % zeros; few large values; values on and half-way between levels; numbers below 2^-126."""
    rng = np.random.default_rng(1)
    normal = rng.standard_normal(_SIZE, np.float32)
    yield "N(0,1)", normal
    yield "62 % zeros", np.where(rng.random(_SIZE) < 0.62, np.float32(0), normal).astype(np.float32)
    yield "few large values", normal**9
    ties = ((np.arange(_SIZE) % 61 - 30) / 2).astype(np.float32)
    ties[::512] = 15
    yield "ties", ties
    yield "denormals", normal[: 4 * 512 + 100] * np.float32(2.0**-140)
