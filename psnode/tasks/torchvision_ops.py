"""The only module in which psnode imports torchvision.

torchvision 0.28 is published with operators compiled only for CUDA, which cannot be loaded together with the CPU build of
torch. This does no harm except in one place: on import, torchvision attaches shape functions to `torchvision::nms` and
`torchvision::qnms`, and torch refuses to attach them to undeclared operators. Declaring the two schemas first is enough for
classification, datasets and transforms, which do not call these operators. Detection calls nms and roi_align, which
`region_ops` provides in plain torch. Nothing is declared if the compiled operators can be loaded.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import threading
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from psnode.errors import ConfigurationError, installing

_ONCE = threading.Lock()
_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def import_torchvision(submodule: str = "") -> Any:
    """Return the module torchvision or `torchvision.<submodule>`. Raises ConfigurationError if torchvision is not installed."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ConfigurationError(f"torchvision is not installed: {installing('train')}")
    with _ONCE:
        if _declare_missing(Path(spec.origin).parent):
            from psnode.tasks import region_ops

            region_ops.declare()
            region_ops.lend(*map(importlib.import_module, ("torchvision.ops.boxes", "torchvision.ops.roi_align")))
    return importlib.import_module(f"torchvision.{submodule}" if submodule else "torchvision")


def _declare_missing(package: Path) -> bool:
    """Declare the missing operators, and return True if nms was one of them."""
    import torch

    for library in (package / f"_C{suffix}" for suffix in EXTENSION_SUFFIXES):
        if library.is_file():
            with contextlib.suppress(OSError):  # the file was built for another torch, or for libraries missing on this system
                torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
            break
    missing = [name for name in _SCHEMAS if not hasattr(torch.ops.torchvision, name)]
    for name in missing:
        torch.library.define(f"torchvision::{name}", _SCHEMAS[name])
    return "nms" in missing
