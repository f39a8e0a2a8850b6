"""Tools of the attacks: each of the other modules makes one, in a copy of a run of two workers, and says how it must end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEP = "checkpoints/step-00000007"
MODEL = "model.safetensors"


def edit(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite a JSON file after `change`."""
    content = json.loads(file.read_bytes())
    change(content)
    file.write_text(json.dumps(content))


def rename_entry(run: Path, name: str, **fields: Any) -> None:
    """Have the manifest list `name`, with `fields`, in the place of the model."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"][name] = {**manifest["files"].pop(MODEL), **fields}

    edit(run / STEP / "manifest.json", change)


def nested(depth: int) -> str:
    """JSON that is valid and `depth` lists deep."""
    return "[" * depth + "]" * depth
