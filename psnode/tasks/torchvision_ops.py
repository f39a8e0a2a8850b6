"""The one way psnode imports torchvision.

torchvision 0.28 is published with operators compiled for CUDA only. Beside the CPU build of torch they cannot be
loaded; torchvision tolerates that everywhere but in one place: while it is imported it attaches shape functions to
`torchvision::nms` and `torchvision::qnms`, and torch refuses to attach them to operators that nobody declared.
Declaring the two schemas first is enough for models, datasets and transforms, none of which calls them.
Where the compiled operators can be loaded nothing is declared.
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
    """The module torchvision, or `torchvision.<submodule>`. ConfigurationError if it is not installed."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise ConfigurationError(f"torchvision is not installed: {installing('train')}")
    with _ONCE:
        _declare_missing(Path(spec.origin).parent)
    return importlib.import_module(f"torchvision.{submodule}" if submodule else "torchvision")


def _declare_missing(package: Path) -> None:
    import torch

    for library in (package / f"_C{suffix}" for suffix in EXTENSION_SUFFIXES):
        if library.is_file():
            with contextlib.suppress(OSError):  # built for another torch or for libraries that are not here
                torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
            break
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", schema)
