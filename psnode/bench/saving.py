"""The option `--json FILE` of every measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def save(result: Any, file: Path | None) -> None:
    """Write `result` as JSON to `file`, in a folder that is made if need be; None: do nothing."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(result, indent=1) + "\n")
