"""Commands on hosts that are emulated by the script netlab.sh in this directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psnode
from psnode.errors import ConfigurationError, TransportError

ROUND_TRIP = 2e-4  # seconds of a round trip between emulated hosts
BURST = 256 * 1024  # bytes that their links carry immediately after a pause, as netlab.sh sets them
_ROOT = Path(psnode.__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("netlab.sh")


def on_hosts(
    command: Sequence[str], *, hosts: int, rate: str, each: bool, counters: Path, seconds: float
) -> tuple[dict[str, Any], str]:
    """Run `command` on emulated hosts with one thread per process. Return the script's counters and all output of the command.

    `hosts`, `rate`, `each` and `counters` are options of the script. Raises ConfigurationError if the script cannot emulate
    hosts on this machine, and TransportError if the command fails or takes longer than `seconds`.
    """
    # bash runs the script, because an installation may have removed its permission to be executed
    options = ["--hosts", str(hosts), "--rate", rate, "--counters", str(counters), *(["--each"] if each else [])]
    line = ["bash", str(SCRIPT), *options, "--"]
    try:
        done = subprocess.run(
            [*line, *command], env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TransportError(f"no end within {seconds:g} s: raise --run-seconds, or take fewer --steps") from None
    refusal = [text for text in done.stdout.splitlines() if text.startswith(f"{SCRIPT}: error: ")]
    if done.returncode == 2 and refusal:
        raise ConfigurationError(refusal[0].removeprefix(f"{SCRIPT}: error: "))
    if done.returncode != 0:
        raise TransportError(f"exit code {done.returncode}: {(refusal or [_reason(done.stdout)])[0]}")
    return json.loads(counters.read_text()), done.stdout


def environment() -> dict[str, str]:
    """Return this process's environment without settings of `psnode train`, and with this Python's commands first on PATH."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PSNODE_")}
    return {
        **kept,
        "PSNODE_PYTHON": sys.executable,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', '')}",
        "PYTHONPATH": f"{_ROOT}{os.pathsep}{kept.get('PYTHONPATH', '')}".rstrip(os.pathsep),
        "OMP_NUM_THREADS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def _reason(output: str) -> str:
    """Return the most informative line of a failed command's output: the first one with an error, else the first line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "rror" in line or "what():" in line]
    return (telling or lines or ["no message"])[0]
