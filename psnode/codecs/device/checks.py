"""A check of kernels on the device that is to run them: does it give the processor's payloads, decoded values and residuals?

A good result is remembered by the text of the kernels and of their callers, device, driver and versions; a difference is
tried again each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

from psnode.codecs import Codec, table
from psnode.codecs.device.change import decoder
from psnode.codecs.device.device_codecs import on_device
from psnode.codecs.device.differences import difference_of_entries
from psnode.codecs.device.protocols import DeviceCodec
from psnode.codecs.device.selected import selector_of
from psnode.codecs.device.spectral import is_spectral
from psnode.errors import in_one_line


class Verdict(NamedTuple):
    """Result of a check of a codec: its form on the device, or in one line why the host has to code."""

    spec: str
    on_device: DeviceCodec | None
    problem: str = ""
    is_known: bool = False  # from an earlier check of the same kernels on such a device

    @property
    def line(self) -> str:
        """A line for a log or the doctor."""
        if self.problem:
            return f"{self.spec} is coded on the host: {self.problem}"
        return f"{self.spec}: the device gives the processor's bytes" + (" (checked before)" if self.is_known else "")


def check(codec: Codec, device: torch.device, *, anew: bool = False) -> Verdict | None:
    """Compare `codec` on `device` with itself on the host; None if it has no device form. `anew`: ignore remembered results.

    A form without kernels of psnode's is compared each time. ConfigurationError if it needs them and CuPy is absent; everything
    else that fails makes a verdict.
    """
    from psnode.codecs.device.cupy.row_kernels import DeviceIdentity, import_cupy
    from psnode.codecs.rows.compiled import write_whole

    if not is_spectral(decoder(codec)):
        import_cupy()
    anew = anew or _selects_by_own_code(codec)
    try:
        if (found := on_device(codec, device)) is None:
            return None
        if not found.text:
            problem = found.difference()
            return Verdict(repr(codec), None if problem else found, problem)
        facts = "\n".join((repr(codec), torch.__version__, _sources(), found.text))
        mark = DeviceIdentity.of(device.index or 0).file(facts, f".{codec.id}.trusted")
        if not anew and mark.is_file():
            return Verdict(repr(codec), found, is_known=True)
        problem = found.difference()
        if not problem:
            write_whole(mark, b"")
    except Exception as error:  # whatever a compiler, a driver or a device may say
        problem = f"its kernels failed: {in_one_line(error)}"
    return Verdict(repr(codec), None if problem else found, problem)


@cache
def _sources() -> str:
    """The text of the modules that use kernels: with another one nothing is known about a device."""
    return "".join(path.read_text() for path in sorted(Path(__file__).parent.rglob("*.py")))


def _selects_by_own_code(codec: Codec) -> bool:
    """True if a codec from outside psnode chooses and writes the entries: by code that no text of kernels shows."""
    selector = selector_of(decoder(codec))
    return selector is not None and table.number_of(selector.id) in table.OUTSIDE


def check_entries(codec: Codec, device: torch.device) -> Verdict:
    """Compare the sums of weights and payloads of `codec`, which is sparse, on `device` with those on the host."""
    try:
        problem = difference_of_entries(codec, device)
    except Exception as error:  # whatever a driver or a device may say
        problem = f"adding failed: {in_one_line(error)}"
    return Verdict(repr(codec), None, problem)


def summary() -> dict[str, list[str]]:
    """Check all codecs of psnode's on every CUDA device here: `good` specs, and `problems` in a line each."""
    from psnode.codecs import available, get_codec

    good, problems = [], []
    for number in range(torch.cuda.device_count()):
        codecs = [get_codec(name) for name in available()]
        forms = [codec.contractive() for codec in codecs]
        for verdict in check_all([*codecs, *forms], torch.device("cuda", number), anew=True):
            if verdict.problem:
                problems.append(verdict.line)
            else:
                good.append(verdict.spec)
    return {"good": sorted(set(good)), "problems": problems}


def check_all(codecs: Iterable[Codec], device: torch.device, *, anew: bool = False) -> list[Verdict]:
    """`check` each of those that have kernels. ConfigurationError if CuPy is absent."""
    return [verdict for codec in codecs if (verdict := check(codec, device, anew=anew)) is not None]
