"""`python -m studies.widths`: kernels compiled for several processors and vector widths, in turn, on one core.

Figures are GB/s of float32 on N(0,1), by processor time. The fastest vector width has to be measured, since some processors run
a 512-bit instruction as two halves, and others lower their clock for such instructions. There is one process for each target
that this processor can run:

    host      kernels as psnode compiles them on this machine
    256       at most 256 bits, if LLVM chooses the width (`+prefer-256-bit`)
    512       the processor's full width, if LLVM chooses the width; left out on AMD, where this is the same as host
    AVX2      without AVX-512, as for a processor that has only AVX2
    Intel     as for Intel's Ice Lake, but with this processor's features: kernels prefetch memory. Only on AMD up to Zen 4
    AMD       as for a Zen 4: kernels leave prefetching to the processor. Only on other processors
    baseline  only features that every processor of this architecture has

All targets write the same payload, which is checked.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from psnode.bench.codecs import SPEEDS
from psnode.bench.hardware import last_level_cache
from psnode.bench.yardsticks.rotation import beyond_cache
from psnode.codecs import get_codec, table
from psnode.codecs.kernels.llvm.runtime_values import UNASKED, processor
from psnode.config.declaration import option
from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError, PsnodeError
from studies.harness import Column, Found, Result, Row, Study, at, codecs, main
from studies.width_process import READ

HOST = "host"
DEFAULT = ("sign", "scaledsign", "qsgd", "terngrad", "minmax", "natural", "topk:ratio=0.001", "polar")
_REPEATS = 7
_BASELINE = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}


def targets(name: str, features: str) -> dict[str, dict[str, str]]:
    """Return by target the environment variables that make Numba compile for this target.

    Only targets that run on this processor are included: `name` and `features` describe it in LLVM's terms.
    """
    has = set(features.split(","))
    found: dict[str, dict[str, str]] = {HOST: {}}
    if "+avx512f" in has:
        without = ",".join(
            f"-{word[1:]}" if word[1:].startswith(("avx512", "evex512", "avx10")) else word for word in sorted(has)
        )
        found["256"] = {"NUMBA_CPU_FEATURES": f"{features},+prefer-256-bit"}
        if not name.startswith("znver"):
            found["512"] = {"NUMBA_CPU_FEATURES": f"{features},-prefer-256-bit"}
        found["AVX2"] = {"NUMBA_CPU_FEATURES": without}
    if "+avx2" in has:
        maker, other = ("Intel", "icelake-server") if name in UNASKED else ("AMD", "znver4")
        found[maker] = {"NUMBA_CPU_NAME": other, "NUMBA_CPU_FEATURES": features}
    return found | {"baseline": _BASELINE}


class _Process:
    """A process that compiles `specs` for a target. It is a context manager, and ends with the context."""

    def __init__(self, name: str, variables: Mapping[str, str], size: int, copies: int, specs: Sequence[str]) -> None:
        self.name = name
        command = [sys.executable, "-m", "studies.width_process", str(size), str(copies), *specs]
        self._process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def digests(self) -> dict[str, str]:
        """Return the digests of the payloads by spec, once all are compiled. Call this exactly once, before `time`."""
        return dict(self._answer())

    def time(self, spec: str, action: str, calls: int) -> float:
        """Return the processor time of a call of `action` with the codec `spec`, in nanoseconds, as a mean over `calls` calls."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the end of the process is detected by the missing answer
            print(to_json([spec, action, calls]), file=self._process.stdin, flush=True)
        return float(self._answer())

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PsnodeError(f"the process of target {self.name} ended with {self._process.wait()}: see its messages above")
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.widths`."""

    codec: tuple[str, ...] = option(DEFAULT, "Measure this one; repeat.", repeated=True, metavar="SPEC")
    size: int = option(2**24, "Values of N(0,1).", minimum=1024)
    seconds: float = option(0.5, "Of each figure.", minimum=0)
    copies: int | None = option(None, "MiB of copies that are gone round; default: 4 last-level caches.", minimum=0)


def measure(options: Options) -> Found:
    """Return a row for each spec and action, with `gbps` by target.

    For all rows together: `targets`, and `read`, the read bandwidth in GB/s by target. Raises PsnodeError if payloads differ or
    a process ends, and ConfigurationError for a codec from outside psnode.
    """
    specs, size, seconds = codecs(options.codec), options.size, options.seconds
    copies = beyond_cache(last_level_cache()) if options.copies is None else options.copies << 20
    if foreign := [spec for spec in specs if getattr(get_codec(spec), "number", None) in table.OUTSIDE]:
        raise ConfigurationError(f"processors are compared by psnode's own codecs alone: leave out {foreign[0]}")
    chosen = targets(*processor())
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(_Process(name, chosen[name], size, copies, specs)) for name in chosen]
        written = [process.digests() for process in processes]
        for spec in specs:
            if (different := len({digests[spec] for digests in written})) > 1:
                raise PsnodeError(f"{spec} writes {different} payloads for targets {', '.join(chosen)}: that is a bug")
        read = _best(processes, READ, READ, size, seconds)
        rows = [
            {"spec": spec, "action": action, "gbps": _best(processes, spec, action, size, seconds)}
            for spec in specs
            for action in SPEEDS
        ]
    return Found(rows, {"repeats": _REPEATS, "targets": chosen, "read": read})


def _best(processes: Sequence[_Process], spec: str, action: str, size: int, seconds: float) -> dict[str, float]:
    """Return by target the GB/s of the best repetition. In each repetition the processes take turns."""
    once = {process.name: max(process.time(spec, action, 1), 1.0) for process in processes}
    best = dict.fromkeys(once, math.inf)
    for _ in range(_REPEATS):
        for process in processes:
            calls = max(1, round(1e9 * seconds / _REPEATS / once[process.name]))
            best[process.name] = min(best[process.name], process.time(spec, action, calls))
    return {name: 4 * size / max(took, 1.0) for name, took in best.items()}


def _columns(result: Result) -> list[Column]:
    """Return the columns with GB/s by target.

    The host's figure is also shown relative to the read bandwidth, and every other figure relative to the host's.
    """

    def ratio(name: str) -> Callable[[Row], str]:
        return lambda row: f"{row['gbps'][name] / row['gbps'][HOST]:.2f}"

    columns = [Column("codec", "`{spec}`", left=True), Column("", "{action}", left=True), Column(HOST, at(".2f", "gbps", HOST))]
    columns.append(Column("of r", lambda row: f"{row['gbps'][HOST] / result['read'][HOST]:.2f}"))
    for name in result["targets"]:
        if name != HOST:
            columns += [Column(name, at(".2f", "gbps", name)), Column(f"/ {HOST}", ratio(name))]
    return columns


def _head(result: Result) -> str:
    read = ", ".join(f"{result['read'][name]:.1f} ({name})" for name in result["targets"])
    what = f"{result['vectors']}. {result['size']:,} values of N(0,1), GB/s of float32"
    return f"{what}, the best of {result['repeats']}, in turn; r = {read}."


STUDY = Study(Options, measure, _columns, _head)


if __name__ == "__main__":
    sys.exit(main(STUDY))
