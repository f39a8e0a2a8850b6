"""A reader of safetensors files with NumPy and JSON; it shares no code with psnode or the safetensors library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

_TYPES = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "U8": "u1"}


def read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a file, by name."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        found[name] = np.frombuffer(content[start + first : start + last], _TYPES[entry["dtype"]]).reshape(entry["shape"])
    return found
