"""The only place where psnode imports torchvision.

torchvision 0.28 is published with operators compiled for CUDA only. Next to the CPU build of torch they cannot be loaded;
torchvision tolerates that everywhere but in one place: while it is imported it attaches shape functions to `torchvision::nms` and
`torchvision::qnms`, and torch refuses to attach them to undeclared operators. Declaring the two schemas first is enough for
classification, datasets and transforms, which do not call them; detection calls nms and roi_align, which `region_ops` provides in
plain torch. If the compiled operators can be loaded nothing is declared.
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
    """Return the module torchvision, or `torchvision.<submodule>`. Raises ConfigurationError if it is not installed."""
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
    """Return True if nms was not declared before and is declared now."""
    import torch

    for library in (package / f"_C{suffix}" for suffix in EXTENSION_SUFFIXES):
        if library.is_file():
            with contextlib.suppress(OSError):  # built for another torch, or for libraries that are missing here
                torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
            break
    missing = [name for name in _SCHEMAS if not hasattr(torch.ops.torchvision, name)]
    for name in missing:
        torch.library.define(f"torchvision::{name}", _SCHEMAS[name])
    return "nms" in missing
