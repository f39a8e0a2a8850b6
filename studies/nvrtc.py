"""NVRTC, which compiles CUDA without a device. It comes from the package nvidia-cuda-nvrtc, or from an installed toolkit."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple

from psnode.errors import ConfigurationError

INSTRUCTION_BYTES = 16  # bytes of an instruction since compute capability 7.0
_NOTHING = 0x918  # the low twelve bits of the instruction that pads the end of a section
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_FUNCTION = 2  # the type of function symbols in ELF


class Compiled(NamedTuple):
    """The result of a compilation: PTX, machine code, and the assembler's log."""

    ptx: str
    code: bytes
    log: str

    def kernels(self) -> dict[str, Kernel]:
        """Return registers, spills and size of each kernel, by name."""
        found: dict[str, dict[str, int]] = {}
        for line in self.log.splitlines():
            if entry := _ENTRY.search(line):
                own = found[entry[1]] = {"registers": 0, "spilled": 0}
            elif spills := _SPILLS.search(line):
                own["spilled"] += int(spills[1]) + int(spills[2])
            elif registers := _REGISTERS.search(line):
                own["registers"] = int(registers[1])
        return {name: Kernel(instructions=_instructions(self.code, name), **numbers) for name, numbers in found.items()}


class Kernel(NamedTuple):
    """Figures of a kernel: registers per thread, bytes spilled to memory, and instructions of its code.

    Every instruction of the code counts once. Subroutines, which handle rare cases, do not count.
    """

    registers: int
    spilled: int
    instructions: int


def find() -> str | None:
    """Return the path of the NVRTC library, or None if it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations if spec and spec.submodule_search_locations else ():
        for path in sorted(Path(place).rglob("libnvrtc.so*"), key=lambda path: "alt" in path.name):
            return str(path)
    return ctypes.util.find_library("nvrtc")


def compile_text(text: str, architecture: str, *, contracted: bool = False) -> Compiled:
    """Compile `text` for an architecture such as sm_90, with the options that fix its results bit by bit.

    `text` has no includes. `contracted`: True to allow fused multiply-add. Raises ConfigurationError if NVRTC is missing, and,
    with NVRTC's messages, for errors in the text.
    """
    if (library := find()) is None:
        raise ConfigurationError("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    nvrtc, program = ctypes.CDLL(library), ctypes.c_void_p()
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None))
    options = [
        f"--gpu-architecture={architecture}".encode(),
        b"--fmad=true" if contracted else b"--fmad=false",
        b"--ftz=false",
        b"--ptxas-options=-v",
    ]
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        log = _read(nvrtc, program, "ProgramLog").decode().rstrip("\0")
        if failed:
            raise ConfigurationError(f"NVRTC refuses the kernels for {architecture}: {' '.join(log.split())[:500]}")
        return Compiled(_read(nvrtc, program, "PTX").decode(), _read(nvrtc, program, "CUBIN"), log)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def version() -> str:
    """Return the version of NVRTC, such as 13.5. Raises ConfigurationError if NVRTC is missing."""
    if (library := find()) is None:
        raise ConfigurationError("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(ctypes.CDLL(library).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return f"{major.value}.{minor.value}"


def _read(nvrtc: Any, program: Any, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    room = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, room))
    return room.raw


def _check(code: int) -> None:
    if code != 0:
        raise ConfigurationError(f"NVRTC: error {code}")


class _Section(NamedTuple):
    """A section of an ELF file: the offset of its name, its type, its content, and the number of the section linked to it."""

    name: int
    kind: int
    content: bytes
    link: int


def _instructions(code: bytes, kernel: str) -> int:
    """Return the number of instructions in the section of `kernel`, without subroutines and padding."""
    sections = _sections(code)
    names = sections[struct.unpack_from("<H", code, 62)[0]].content
    number, text = next((at, each.content) for at, each in enumerate(sections) if _name(names, each.name) == f".text.{kernel}")
    end = min([start for start in _functions(sections, number) if start], default=len(text))  # subroutines follow the kernel
    words = [struct.unpack_from("<Q", text, at)[0] & 0xFFF for at in range(0, end, INSTRUCTION_BYTES)]
    while words and words[-1] == _NOTHING:
        words.pop()
    return len(words)


def _functions(sections: list[_Section], number: int) -> list[int]:
    """Return the offsets of the functions in section number `number`."""
    starts = []
    for table in (each for each in sections if each.kind == 2):
        for _, info, _, section, value, _ in struct.iter_unpack("<IBBHQQ", table.content):
            if section == number and info & 0xF == _FUNCTION:
                starts.append(value)
    return starts


def _sections(code: bytes) -> list[_Section]:
    start, size, count = *struct.unpack_from("<Q", code, 40), *struct.unpack_from("<HH", code, 58)
    found = []
    for at in range(start, start + size * count, size):
        name, kind, _, _, offset, nbytes, link = struct.unpack_from("<IIQQQQI", code, at)
        found.append(_Section(name, kind, code[offset : offset + nbytes] if kind != 8 else b"", link))
    return found


def _name(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()
