"""Bytes copied between a CUDA device and the host during an action, as the driver reports them."""

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
    """Bytes copied from the device to the host (`down`) and from the host to the device (`up`)."""

    down: int
    up: int


def crossed(action: Callable[[], object], device: torch.device) -> Crossed | None:
    """Run `action`, which must wait for the device. Return the bytes copied during it; None if the driver does not report them.

    On a CPU device no bytes are copied. The profiler slows the action down, so do not time the action in the same run.
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
    """Return the copied bytes in a trace of torch's profiler; None if it shows no copy to the host.

    Every step copies its loss to the host, so a trace without such a copy is incomplete.
    """
    copies = [event for event in trace["traceEvents"] if event.get("cat") == _KIND]
    down, up = (sum(int(event["args"]["bytes"]) for event in copies if event["name"].startswith(name)) for name in (_DOWN, _UP))
    return Crossed(down, up) if down else None
