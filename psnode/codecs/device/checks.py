"""Checks of a codec's kernels on a device: they must give the same payloads, decoded values and residuals as the CPU.

The result of a passed check is stored in a file. It is valid as long as the text of the kernels and of their callers, the
device, the driver and the versions of libraries stay the same. A failed check is repeated each time.
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
    """Result of the check of a codec: its form on the device, or the reason why the host must code instead."""

    spec: str
    on_device: DeviceCodec | None
    problem: str = ""
    is_known: bool = False  # from an earlier check of the same kernels on the same kind of device

    @property
    def line(self) -> str:
        """The result as one line, for a log or for `psnode doctor`."""
        if self.problem:
            return f"{self.spec} is coded on the host: {self.problem}"
        return f"{self.spec}: the device gives the processor's bytes" + (" (checked before)" if self.is_known else "")


def check(codec: Codec, device: torch.device, *, anew: bool = False) -> Verdict | None:
    """Compare `codec` on `device` with the host, and return the result. Return None if the codec has no device form.

    `anew`: ignore stored results. A device form without kernels of psnode is compared each time. Raise ConfigurationError if
    the codec needs kernels and CuPy is missing. Any other failure becomes the `problem` of the result.
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
    except Exception as error:  # a compiler, a driver or a device may raise any exception
        problem = f"its kernels failed: {in_one_line(error)}"
    return Verdict(repr(codec), None if problem else found, problem)


@cache
def _sources() -> str:
    """Return the text of the modules that use kernels. If this text changes, stored results of checks are no longer valid."""
    return "".join(path.read_text() for path in sorted(Path(__file__).parent.rglob("*.py")))


def _selects_by_own_code(codec: Codec) -> bool:
    """Return True if a codec from outside psnode selects the entries with code of its own, which is not in the kernels' text."""
    selector = selector_of(decoder(codec))
    return selector is not None and table.number_of(selector.id) in table.OUTSIDE


def check_entries(codec: Codec, device: torch.device) -> Verdict:
    """Check that adding payloads of the sparse `codec` to weights on `device` gives the same sums as on the host."""
    try:
        problem = difference_of_entries(codec, device)
    except Exception as error:  # a driver or a device may raise any exception
        problem = f"adding failed: {in_one_line(error)}"
    return Verdict(repr(codec), None, problem)


def summary() -> dict[str, list[str]]:
    """Check all available codecs and their contractive forms on every CUDA device.

    Return the specs of the codecs that passed as `good`, and one line for each failure as `problems`.
    """
    from psnode.codecs import available
    from psnode.codecs.registry import known_codec

    good, problems = [], []
    for number in range(torch.cuda.device_count()):
        codecs = [known_codec(name) for name in available()]
        forms = [codec.contractive() for codec in codecs]
        for verdict in check_all([*codecs, *forms], torch.device("cuda", number), anew=True):
            if verdict.problem:
                problems.append(verdict.line)
            else:
                good.append(verdict.spec)
    return {"good": sorted(set(good)), "problems": problems}


def check_all(codecs: Iterable[Codec], device: torch.device, *, anew: bool = False) -> list[Verdict]:
    """Return the results of the checks of all `codecs` that have a device form. Raise ConfigurationError if CuPy is missing."""
    return [verdict for codec in codecs if (verdict := check(codec, device, anew=anew)) is not None]
