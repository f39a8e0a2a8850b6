"""Programs that `psnode doctor` runs in processes of their own, so that an import that crashes or
hangs ends only that process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SECONDS = 60.0
_RULE = re.compile(r"^-{10,}$", re.MULTILINE)  # above and below a message of Open MPI
_MOST = 240  # characters of an error


def probe(command: list[str], extra: Mapping[str, str] | None = None, seconds: float = _SECONDS) -> dict[str, Any]:
    """Return the last line of JSON that `command` prints; if it prints none or times out, its last words under "error"."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                cwd=folder,
                env={**os.environ, **_importable(), **(extra or {})},
            )
        except subprocess.TimeoutExpired as error:
            printed = error.stdout or b""
            text = printed.decode(errors="replace") if isinstance(printed, bytes) else printed
            return {**(_json(text) or {}), "error": f"did not end within {seconds:.0f} s"}
        except OSError as error:
            return {"error": " ".join(str(error).split())[-_MOST:]}
    found = _json(done.stdout)
    return {"error": _words(done.stderr) or f"exit code {done.returncode}"} if found is None else found


def _json(text: str) -> dict[str, Any] | None:
    for line in reversed(text.splitlines()):
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError):
            continue
    return None


def _words(text: str) -> str:
    """Return the last line, which names the error in Python, or the first text that Open MPI prints between two rules."""
    parts = _RULE.split(text)
    telling = parts[1].split("\n\n") if len(parts) > 2 else text.strip().splitlines()[-1:]
    return " ".join(" ".join(telling).split())[:_MOST]


def _importable() -> dict[str, str]:
    """Return the environment with which the child finds the same psnode as this process; an installed one needs no help."""
    home = Path(__file__).resolve().parents[2]
    if home.name in ("site-packages", "dist-packages"):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(home), os.environ.get("PYTHONPATH", ""))))}
