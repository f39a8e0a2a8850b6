"""Programs that run in separate processes and print JSON. A program that crashes or hangs ends only its own process."""

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
_RULE = re.compile(r"^-{10,}$", re.MULTILINE)  # the lines above and below a message of Open MPI
_MOST = 240  # maximum characters of an error


def probe(command: list[str], extra: Mapping[str, str] | None = None, seconds: float = _SECONDS) -> dict[str, Any]:
    """Run `command`, and return the last line of JSON that it prints.

    If the command prints no JSON, does not end within `seconds`, or cannot be run, the entry "error" of the result is the
    reason. If the command prints JSON and then fails, the entry "ended" is its exit code, or -N if signal N ended the
    command.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
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
    if found is None:
        return {"error": _words(done.stderr) or f"exit code {done.returncode}"}
    return {**found, "ended": done.returncode} if done.returncode else found


def _json(text: str) -> dict[str, Any] | None:
    for line in reversed(text.splitlines()):
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError):
            continue
    return None


def _words(text: str) -> str:
    """Return the error that a program printed in `text`.

    For Open MPI this is the text between the first two lines of dashes. Without such lines it is the last line, as in Python.
    """
    parts = _RULE.split(text)
    telling = parts[1].split("\n\n") if len(parts) > 2 else text.strip().splitlines()[-1:]
    return " ".join(" ".join(telling).split())[:_MOST]


def _importable() -> dict[str, str]:
    """Return the environment variables that let a child process import the same psnode as this process.

    The result is empty if psnode is installed.
    """
    home = Path(__file__).resolve().parents[3]
    if home.name in ("site-packages", "dist-packages"):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(home), os.environ.get("PYTHONPATH", ""))))}
