"""NVRTC, which compiles CUDA without a device: that of the package nvidia-cuda-nvrtc, or of an installed toolkit."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple


class Compiled(NamedTuple):
    """PTX, the machine code's size, and what the assembler says."""

    ptx: str
    nbytes: int
    log: str


def find() -> str | None:
    """The path of the library, None if there is none."""
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations if spec and spec.submodule_search_locations else ():
        for path in sorted(Path(place).rglob("libnvrtc.so*"), key=lambda path: "alt" in path.name):
            return str(path)
    return ctypes.util.find_library("nvrtc")


def compile_text(text: str, headers: Path, architecture: str, contracted: bool = False) -> Compiled:
    """`text` for an architecture such as sm_90, with the options that its bytes rest on; or without the first of them."""
    nvrtc, program = ctypes.CDLL(find()), ctypes.c_void_p()
    names = [path.name.encode() for path in sorted(headers.glob("*.h"))]
    sources = [(headers / name.decode()).read_bytes() for name in names]
    count = ctypes.c_int(len(names))
    _check(
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"kernels.cu", count, _strings(sources), _strings(names))
    )
    options = [
        f"--gpu-architecture={architecture}".encode(),
        b"--fmad=true" if contracted else b"--fmad=false",
        b"--ftz=false",
        b"--ptxas-options=-v",
    ]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), _strings(options))
    log = _read(nvrtc, program, "ProgramLog").decode().rstrip("\0")
    assert not failed, log
    ptx, code = _read(nvrtc, program, "PTX").decode(), _read(nvrtc, program, "CUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return Compiled(ptx, len(code), log)


def _strings(texts: list[bytes]) -> Any:
    return (ctypes.c_char_p * len(texts))(*texts)


def _read(nvrtc: Any, program: Any, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    room = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, room))
    return room.raw


def _check(code: int) -> None:
    assert code == 0, f"NVRTC: error {code}"
