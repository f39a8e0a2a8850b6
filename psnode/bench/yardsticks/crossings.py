"""Bytes that cross between a CUDA device and the host while something runs, whoever copies them, as the driver tells."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

_KIND, _DOWN, _UP = "gpu_memcpy", "Memcpy DtoH", "Memcpy HtoD"


class Crossed(NamedTuple):
    """Bytes from the device to the host (`down`), and from the host to the device (`up`)."""

    down: int
    up: int


def crossed(action: Callable[[], object], device: torch.device) -> Crossed | None:
    """Run `action`, which waits for the device; the bytes that crossed meanwhile. None if the driver does not tell.

    Nothing crosses where the device is the processor. A run under the profiler is slower: it is not one to time.
    """
    if device.type != "cuda":
        action()
        return Crossed(0, 0)
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        action()
    with tempfile.TemporaryDirectory(prefix="psnode-crossings-") as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        return counted(json.loads(path.read_text()))


def counted(trace: Mapping[str, Any]) -> Crossed | None:
    """Bytes of the copies in a trace of torch's profiler; None if there are none, since every step's loss comes to the host."""
    copies = [event for event in trace["traceEvents"] if event.get("cat") == _KIND]
    down, up = (sum(int(event["args"]["bytes"]) for event in copies if event["name"].startswith(name)) for name in (_DOWN, _UP))
    return Crossed(down, up) if down else None
