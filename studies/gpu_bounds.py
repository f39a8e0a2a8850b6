"""`python -m studies.gpu_bounds`: registers and instructions of kernels for GPUs, and the share of a copy that they allow.

NVRTC compiles the kernels without a device. The number of registers determines how many warps a multiprocessor can hold. The
number of instructions determines the time to issue them: one warp codes a row of 512 values, and each of the four schedulers of
a multiprocessor issues one instruction of a warp per clock. The first share assumes that nothing else takes time. The second
share assumes that all instructions are for integers, which take two clocks each. Other effects that only a device shows, such
as waits for memory, are left out. So both shares are upper bounds, not measurements. The instructions counted are those on the
straight path through the kernel for a row of N(0,1). If five rows share bytes, the work for these bytes is counted in full for
each of the five rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from psnode.bench.gpu import ACTIONS, FLOATS
from psnode.codecs import available, get_codec
from psnode.config.declaration import option
from psnode.errors import ConfigurationError
from studies.harness import Column, Found, Result, Row, Study, codecs, main
from studies.nvrtc import compile_text, version

if TYPE_CHECKING:
    from psnode.codecs.rows.formula import Program


class Device(NamedTuple):
    """A GPU according to its data sheet.

    `clock`: the clock in Hz that the data sheet's float32 rate is based on. `memory`: bytes per second.
    """

    name: str
    multiprocessors: int
    clock: float
    memory: float


DEVICES = {
    "sm_80": Device("A100 SXM, 80 GB", 108, 1.41e9, 2.039e12),
    "sm_90": Device("H100 SXM", 132, 1.98e9, 3.35e12),
    "sm_100": Device("B200", 148, 1.98e9, 8e12),
}
_SOURCES = (
    "Multiprocessors, clock and memory are those of NVIDIA's data sheets (of the B200: an eighth of HGX B200); the clock is the "
    "boost clock that the stated float32 rate of 19.5, 67 and 75 TFLOPS rests on. 65,536 registers and 64 warps a "
    "multiprocessor, one instruction of a warp a clock from each of its four schedulers, and half as many of integers: "
    "CUDA C++ Programming Guide, compute capabilities 8.0, 9.0 and 10.0."
)
_SCHEDULERS, _INTEGER_RATE = 4, 2  # warp instructions per clock and multiprocessor
_WARPS, _BLOCK_WARPS, _REGISTERS, _GRAIN = 64, 8, 65536, 256
_ROW, _UNIT = 512, 5  # values of a row; rows that fill whole units of every packing
_CHOICES = ("if (error) {", "if (adding) {")  # branches that are decided by the arguments of a call
_ACTIONS = {False: {"encode": "encode", "decode": "decode"}, True: {"error": "encode", "decode_add": "decode"}}


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.gpu_bounds`."""

    codec: tuple[str, ...] = option((), "This one; repeat; default: all that have a formula.", repeated=True, metavar="SPEC")


def measure(options: Options) -> Found:
    """Return a row for each spec and each architecture in DEVICES.

    For each kernel a row has `registers`, bytes `spilled` and resident `warps`. For each of ACTIONS it has the `instructions`
    of a warp per row, and two `shares` of a copy, both upper bounds: one if all units were as fast as the schedulers, and one
    if all instructions were for integers. Raises ConfigurationError for a spec without a formula, and if NVRTC is missing.
    """
    from psnode.codecs.rows.formula import program_of
    from psnode.codecs.rows.known import formula_of, ranking_of

    specs = codecs(options.codec)
    if selections := [spec for spec in specs if ranking_of(get_codec(spec)) is not None]:
        raise ConfigurationError(f"{', '.join(selections)}: instructions depend on what is coded")
    formulas = {spec: formula_of(get_codec(spec)) for spec in specs or available()}
    if specs and None in formulas.values():
        without = ", ".join(spec for spec, formula in formulas.items() if formula is None)
        raise ConfigurationError(f"{without}: no formula, so nothing runs on a device (psnode codecs --json)")
    programs = {spec: program_of(formula) for spec, formula in formulas.items() if formula is not None}
    if varying := [spec for spec in specs if programs[spec].packed.varies]:
        raise ConfigurationError(f"{', '.join(varying)}: instructions depend on what is coded")
    programs = {spec: program for spec, program in programs.items() if not program.packed.varies}
    rows = [_row(spec, program, name) for name in DEVICES for spec, program in programs.items()]
    return Found(rows, {"nvrtc": version()})


def _row(spec: str, program: Program, architecture: str) -> dict[str, Any]:
    from psnode.codecs.device.cupy.row_kernels import standalone
    from psnode.codecs.rows.cuda.text import text_of

    row: dict[str, Any] = {"spec": spec, "architecture": architecture, "device": DEVICES[architecture].name}
    kernels = compile_text(standalone(text_of(program)), architecture).kernels()
    for name in ("encode", "decode"):
        row[name + "_kernel"] = {**kernels[name]._asdict(), "warps": resident_warps(kernels[name].registers)}
    payload = program.nbytes(_ROW * _UNIT) / (_ROW * _UNIT)
    for action, kernel in _taken(program, architecture).items():
        before = [*(["survey"] if program.sweeps else []), *(["sum_rows"] if program.sums else [])]
        sweeps = [(4.0, kernels[name].instructions) for name in before if action in ("encode", "error")]
        moved = 4.0 * FLOATS[action] + payload
        parts = [*sweeps, (moved, kernel)]
        row[action] = {
            "instructions": sum(count for _, count in parts),
            "shares": [share_of_copy(DEVICES[architecture], moved, parts, rate) for rate in (_SCHEDULERS, _INTEGER_RATE)],
        }
    return row


def _taken(program: Program, architecture: str) -> dict[str, int]:
    """Return the number of instructions of each of ACTIONS for a row of N(0,1)."""
    from psnode.codecs.device.cupy.row_kernels import standalone
    from psnode.codecs.rows.cuda.text import text_of
    from psnode.codecs.rows.usual import usual, usual_text

    found: dict[str, int] = {}
    text = usual_text(standalone(text_of(usual(program))))
    for chosen, actions in _ACTIONS.items():
        made = text
        for choice in _CHOICES:
            if choice not in text:
                raise AssertionError(f"the kernels have no {choice!r}")
            made = made.replace(choice, f"if ({str(chosen).lower()}) {{")
        kernels = compile_text(made, architecture).kernels()
        found |= {action: kernels[name].instructions for action, name in actions.items()}
    return {action: found[action] for action in ACTIONS}


def resident_warps(registers: int) -> int:
    """Return the number of warps that a multiprocessor can hold at `registers` registers per thread.

    Blocks have 256 threads.
    """
    each = -(-registers * 32 // _GRAIN) * _GRAIN
    return min(_WARPS, _REGISTERS // 4 // each * 4) // _BLOCK_WARPS * _BLOCK_WARPS


def share_of_copy(device: Device, moved: float, parts: Sequence[tuple[float, float]], rate: float) -> float:
    """Return the largest possible speed of an action that moves `moved` bytes per value, as a share of a copy's bytes per second.

    `parts`: for each kernel, bytes per value and instructions per row; the kernels run one after another. `rate`: warp
    instructions per clock and multiprocessor. A kernel takes the time for its memory or the time for its instructions,
    whichever is longer.
    """
    issued = device.multiprocessors * device.clock * rate * _ROW  # values per second, at one instruction per row
    return moved / device.memory / sum(max(nbytes / device.memory, count / issued) for nbytes, count in parts)


def _head(result: Result) -> str:
    return (
        f"NVRTC {result['nvrtc']}; compiled, not run. Cells: encode / decode, or encode / encode and leave the error / decode / "
        f"decode and add.\n\n{_SOURCES}"
    )


def _foot(result: Result) -> str:
    devices = [
        f"{name}: {each.multiprocessors} multiprocessors, {each.clock / 1e9:.2f} GHz, {each.memory / 1e9:,.0f} GB/s."
        for name, each in DEVICES.items()
    ]
    spilled = sum(row[kernel]["spilled"] for row in result["rows"] for kernel in ("encode_kernel", "decode_kernel"))
    return "\n".join([*devices, "", f"Bytes spilled from registers to memory, in all: {spilled}."])


def _kernels(name: str) -> Callable[[Row], str]:
    return lambda row: f"{row['encode_kernel'][name]} / {row['decode_kernel'][name]}"


def _shares(at: int) -> Callable[[Row], str]:
    return lambda row: " / ".join(f"{row[action]['shares'][at]:.2f}" for action in ACTIONS)


COLUMNS = (
    Column("codec", "{spec}", left=True),
    Column("registers", _kernels("registers"), left=True),
    Column("warps of 64", _kernels("warps"), left=True),
    Column("instructions a row", lambda row: " / ".join(str(row[action]["instructions"]) for action in ACTIONS), left=True),
    Column("share at most", _shares(0), left=True),
    Column("all of integers", _shares(1), left=True),
)
STUDY = Study(Options, measure, COLUMNS, _head, _foot, tables="architecture")


if __name__ == "__main__":
    sys.exit(main(STUDY))
