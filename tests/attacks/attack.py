"""Tools of the attacks. Each other module except the tests makes one attack, in a copy of a run of two workers, and states
the expected outcome.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEP = "checkpoints/step-00000007"
MODEL = "model.safetensors"


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Apply `change` to the contents of a JSON file."""
    content = json.loads(file.read_bytes())
    change(content)
    file.write_text(json.dumps(content))


def rename_entry(run: Path, name: str, **fields: Any) -> None:
    """Have the manifest list `name`, with `fields`, in place of the model."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = {**manifest["files"].pop(MODEL), **fields}

    edit(run / STEP / "manifest.json", change)


def nested(depth: int) -> str:
    """Return valid JSON, `depth` nested lists deep."""
    return "[" * depth + "]" * depth
