"""A fake device: stands in for the few calls of CuPy that psnode makes, with g++ as NVRTC, so that the actual kernel text runs.

Device memory is host memory, and torch's device is the CPU. Speed and the effects of a GPU's compiler cannot be tested.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.rows.hosted import library_of

CPU = torch.device("cpu")
_ARGUMENTS = {np.uint64: ctypes.c_uint64, np.uint32: ctypes.c_uint32, np.int32: ctypes.c_int32, np.float32: ctypes.c_float}


class Device:
    """A CUDA device, by its number (None: the current device), and the context in which it is current."""

    compute_capability = "90"

    def __init__(self, number: int) -> None:
        assert isinstance(number, int)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class FakeCupy(ModuleType):
    """Stand-in for the module cupy. `compiled`: texts with options; `launched`: names of kernels; `edit`: a function that
    changes a text before it is compiled.
    """

    __version__ = "14.0.0"

    def __init__(self) -> None:
        super().__init__("cupy")
        self.compiled: list[tuple[str, tuple[str, ...]]] = []
        self.launched: list[str] = []
        self.edit: Callable[[str], str] = str
        self.driver = 13000
        self.cuda = SimpleNamespace(
            Device=Device,
            Stream=SimpleNamespace(from_external=self._stream),
            compiler=SimpleNamespace(compile_using_nvrtc=self._compile),
            nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
            runtime=SimpleNamespace(
                driverGetVersion=lambda: self.driver, getDeviceProperties=lambda number: {"name": b"A fake device"}
            ),
        )

    from_dlpack, packbits, unpackbits = (staticmethod(each) for each in (np.from_dlpack, np.packbits, np.unpackbits))

    @contextlib.contextmanager
    def _stream(self, stream: Any) -> Iterator[None]:
        assert stream.__cuda_stream__() == (0, STREAM)
        yield

    def _compile(self, source: str, options: tuple[str, ...] = (), filename: str = "") -> tuple[bytes, None]:
        self.compiled.append((source, options))
        return library_of(self.edit(source)), None

    def RawModule(self, *, path: str) -> Any:  # noqa: N802
        library = ctypes.CDLL(path)

        def function(name: str) -> Any:
            def launch(grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
                assert block == (256,) and grid[0] >= 1
                self.launched.append(name)
                getattr(library, name)(*(_ARGUMENTS[type(each)](each.item()) for each in arguments))

            return launch

        return SimpleNamespace(get_function=function)


STREAM = 4711  # the address of torch's current stream


class Event:
    """Stand-in for a CUDA event of torch, on a clock that advances by one millisecond per event."""

    now = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        self._at = 0.0

    def record(self, stream: object = None) -> None:
        Event.now += 1.0
        self._at = Event.now

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: Event) -> float:
        return other._at - self._at


class Stream:
    """Stand-in for a CUDA stream of torch, and the context in which it is current."""

    cuda_stream = STREAM

    def __init__(self, device: torch.device | None = None) -> None:
        pass

    def wait_event(self, event: Event) -> None:
        assert event._at > 0, "nothing records this event"


def install(monkeypatch: pytest.MonkeyPatch, cache: Path) -> FakeCupy:
    """Make `import cupy` find the stand-in, make torch report its stream as current, and store compiled kernels in `cache`."""
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    stream = Stream()
    for name, value in (("Stream", Stream), ("Event", Event), ("stream", contextlib.nullcontext)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr("psnode.codecs.device.cupy.row_kernels.directory", lambda: cache)
    return fake
