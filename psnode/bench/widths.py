"""`psnode bench codecs --compare widths`: kernels compiled for several processors and widths of vectors, in turn, on one core.

GB/s of float32 on N(0,1), by processor time. Some processors run an instruction of 512 bits as two halves, others lower their
clock for it: which width is the fastest is a matter of measuring. A process for each of the targets that this processor can run:

    host      as psnode compiles on this machine
    256       no wider than 256 bits where LLVM chooses the width (`+prefer-256-bit`)
    512       as wide as the processor allows there; an AMD's kernels are as they are
    AVX2      without AVX-512: a processor that has AVX2 alone
    Intel     as on an Ice Lake of Intel's with the features of this processor: kernels ask for memory ahead. Up to Zen 4 alone
    AMD       as on a Zen 4: they leave that to the processor. On others alone
    baseline  without anything that not every processor of this kind has

All write the same payload, which is checked.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from psnode.bench.codecs import SPEEDS
from psnode.bench.hardware import hardware, last_level_cache
from psnode.bench.rotation import beyond_cache
from psnode.bench.saving import save
from psnode.bench.width_process import READ
from psnode.codecs import get_codec, table
from psnode.codecs.kernels.llvm.values import UNASKED, processor
from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError, PsnodeError

HOST = "host"
DEFAULT = ("sign", "scaledsign", "qsgd", "terngrad", "minmax", "natural", "topk:ratio=0.001", "polar")
_REPEATS = 7
_BASELINE = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}


def targets(name: str, features: str) -> dict[str, dict[str, str]]:
    """By name the variables that make Numba compile for it, of those that run on the processor `name`, in LLVM's words."""
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
    """A process that has compiled `specs` for a target. Use as a context manager."""

    def __init__(self, name: str, variables: Mapping[str, str], size: int, copies: int, specs: Sequence[str]) -> None:
        self.name = name
        command = [sys.executable, "-m", "psnode.bench.width_process", str(size), str(copies), *specs]
        self._process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def digests(self) -> dict[str, str]:
        """Digests of the payloads by spec, once everything is compiled; called first, and once."""
        return dict(self._answer())

    def time(self, spec: str, action: str, calls: int) -> float:
        """Nanoseconds of processor time of a call."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # told by the answer that does not come
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


def run(specs: Sequence[str], size: int, seconds: float, copies: int) -> dict[str, Any]:
    """Measure `specs`, by default those in DEFAULT. `seconds`: of each figure; `copies`: bytes of the arrays taken in turn.

    `read`: GB/s by target; a row has a spec, an action, and `gbps` by target. PsnodeError if payloads differ, or a process ends,
    ConfigurationError if a codec comes from outside psnode.
    """
    specs = list(specs) or list(DEFAULT)
    if foreign := [spec for spec in specs if getattr(get_codec(spec), "number", None) in table.OUTSIDE]:
        raise ConfigurationError(f"--compare widths knows psnode's own codecs alone: leave out {foreign[0]}")
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
    return {**hardware(), "size": size, "repeats": _REPEATS, "targets": chosen, "read": read, "rows": rows}


def _best(processes: Sequence[_Process], spec: str, action: str, size: int, seconds: float) -> dict[str, float]:
    """GB/s by target: the best of the repetitions, in which the processes take turns."""
    once = {process.name: max(process.time(spec, action, 1), 1.0) for process in processes}
    best = dict.fromkeys(once, math.inf)
    for _ in range(_REPEATS):
        for process in processes:
            calls = max(1, round(1e9 * seconds / _REPEATS / once[process.name]))
            best[process.name] = min(best[process.name], process.time(spec, action, calls))
    return {name: 4 * size / max(took, 1.0) for name, took in best.items()}


def markdown(result: dict[str, Any]) -> str:
    """The result as a page for docs/results: GB/s, and the share of the read bandwidth that the host's kernels have."""
    names, read = list(result["targets"]), result["read"]
    others = [name for name in names if name != HOST]
    heads = "".join(f" {name} | / {HOST} |" for name in others)
    lines = [f"| codec | | {HOST} | of r |{heads}", "|---|---|" + "---:|" * (2 + 2 * len(others))]
    for row in result["rows"]:
        host = row["gbps"][HOST]
        cells = [f"{host:.2f}", f"{host / read[HOST]:.2f}"]
        for name in others:
            cells += [f"{row['gbps'][name]:.2f}", f"{row['gbps'][name] / host:.2f}"]
        lines.append(f"| `{row['spec']}` | {row['action']} | {' | '.join(cells)} |")
    head = (
        f"{result['date']}, {result['cpu']}, {result['vectors']}, {result['cores']} cores. {result['size']:,} values of N(0,1), "
        f"GB/s of float32, the best of {result['repeats']}, in turn; r = "
    )
    return "\n".join([head + ", ".join(f"{read[name]:.1f} ({name})" for name in names) + ".", "", *lines]) + "\n"


def main(specs: Sequence[str], size: int, seconds: float, copies: int | None, json_file: Path | None) -> int:
    """Measure, print the page, write JSON; the exit code. `copies`: MiB, None: by the cache."""
    result = run(specs, size, seconds, beyond_cache(last_level_cache()) if copies is None else copies << 20)
    print(markdown(result), end="")
    save(result, json_file)
    return 0
