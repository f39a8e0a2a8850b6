"""The option `--json FILE` of every measurement, and the options `--from FILE` and `--plot FILE` that some of them have."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError
from psnode.records.metrics import write_atomically


def save(result: Any, file: Path | None) -> None:
    """Replace `file` by `result` as JSON, creating its folder if needed; with None, do nothing."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, (to_json(result, indent=1) + "\n").encode())


def require_matplotlib() -> None:
    """Raise ConfigurationError if matplotlib is not installed. Call this before a measurement whose plot needs it."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError("--plot needs the package matplotlib: pip install matplotlib")


def load(file: Path) -> dict[str, Any]:
    """Load a result of `psnode bench codecs` that `save` wrote. Raises ConfigurationError for a file without such a result."""
    try:
        result = json.loads(file.read_bytes())
        if not all("spec" in row for source in result["sources"].values() for row in source["rows"]):
            raise ValueError("a row is of no codec")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"--from {file} holds no such result ({error}): name a file of --json") from error
    return dict(result)
