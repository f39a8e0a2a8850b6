"""Comparison of killed and resumed runs with unbroken runs, as a Markdown table: scripts/resume_table.py [--seed S] [SCHEME ...]

For every scheme two runs of two workers on the CPU are compared. One run is undisturbed. The other run is killed three times,
and resumed each time: its process gets SIGKILL at a random step, after one more step, and while it writes a checkpoint. Then
this run continues to its end. Both runs must have the same hash of the final weights and the same losses in all steps. The exit
code is 1 if a scheme fails this test.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the tests use this checkout
STEPS, EVERY = 14, 3
FLAGS = ["--local", "2", "--batch-size", "8", "--threads", "1", "--no-tensorboard", "--lr", "0.005", "--eval-freq", str(EVERY)]
SECONDS = 240


def arguments(train_dir: Path, scheme: str, *flags: str) -> list[str]:
    """Return the arguments of psnode for a run of `scheme`."""
    return ["train", *FLAGS, "--max-steps", str(STEPS), "--scheme", scheme, *flags, "--train-dir", str(train_dir)]


def start(train_dir: Path, scheme: str, *flags: str) -> subprocess.Popen[str]:
    """Start a run of `scheme` in a separate process."""
    return subprocess.Popen(
        [sys.executable, "-m", "psnode", *arguments(train_dir, scheme, *flags)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def records(train_dir: Path) -> list[dict[str, Any]]:
    """Return the complete step records of a run."""
    file = train_dir / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def last_step(train_dir: Path) -> int:
    """Return the step of the newest record, or 0 if there are no records."""
    return max((int(record["step"]) for record in records(train_dir)), default=0)


def kill_when(process: subprocess.Popen[str], ready: Callable[[], bool]) -> None:
    """Wait until `ready` returns True, at most SECONDS. Then send SIGKILL, and wait for the process to end."""
    end = time.monotonic() + SECONDS
    while not ready() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def kill_after(train_dir: Path, steps: int, *flags: str, scheme: str) -> int:
    """Start or resume the run, and kill it when it has recorded `steps` new steps. Return the last recorded step."""
    file = train_dir / "metrics.jsonl"
    before = file.stat().st_ino if file.exists() else 0  # a resumed run rewrites the records that it keeps
    latest = train_dir / "checkpoints" / "latest"
    base = int(latest.read_text().strip().removeprefix("step-")) if latest.exists() else 0
    process = start(train_dir, scheme, *flags)
    kill_when(process, lambda: file.exists() and file.stat().st_ino != before and last_step(train_dir) >= base + steps)
    return last_step(train_dir)


def kill_inside_a_checkpoint(train_dir: Path, scheme: str) -> str:
    """Resume the run, and kill it while it writes a checkpoint.

    Return the step of the checkpoint, or "-" if no checkpoint was being written.
    """
    before = (train_dir / "config.json").stat().st_ino
    process = start(train_dir, scheme, "--resume")

    def drafts() -> list[str]:
        if (train_dir / "config.json").stat().st_ino == before:  # the present drafts were left by earlier kills
            return []
        return [path.name for path in (train_dir / "checkpoints").glob(".step-*") if not path.name.endswith(".gone")]

    kill_when(process, lambda: bool(drafts()))
    left = drafts()
    return str(int(left[0].removeprefix(".step-").partition(".")[0])) if left else "-"  # the suffix of the job follows a point


def complete(train_dir: Path, scheme: str, *flags: str) -> None:
    """Run `scheme` in this process to its end. Raises SystemExit with the run's output if the run fails."""
    from psnode.cli import main as psnode

    with contextlib.redirect_stdout(io.StringIO()) as told, contextlib.redirect_stderr(told):
        code = psnode(arguments(train_dir, scheme, *flags))
    if code:
        raise SystemExit(told.getvalue())


def outcome(train_dir: Path) -> tuple[str, list[float]]:
    """Return the hash of a run's final weights, and the losses of all its steps."""
    return json.loads((train_dir / "summary.json").read_bytes())["model_hash"], [record["loss"] for record in records(train_dir)]


def row(scheme: str, folder: Path, rng: random.Random) -> tuple[str, bool]:
    """Return the line of the table for `scheme`, and True if both runs have the same weights and losses."""
    complete(folder / "whole", scheme)
    parts = folder / "parts"
    first = kill_after(parts, rng.randint(1, STEPS - 5), scheme=scheme)
    second = kill_after(parts, 1, "--resume", scheme=scheme)
    third = kill_inside_a_checkpoint(parts, scheme)
    complete(parts, scheme, "--resume")
    whole, resumed = outcome(folder / "whole"), outcome(parts)
    alike = whole == resumed
    cells = [scheme, first, second, third, whole[0][:16], resumed[0][:16], "yes" if alike else "NO"]
    return f"| {' | '.join(map(str, cells))} |", alike


def main() -> int:
    """Print the table, and return the exit code."""
    from psnode.config.schemes import SCHEMES

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("schemes", nargs="*", metavar="SCHEME", default=[])
    args = parser.parse_args()
    rng, good = random.Random(args.seed), True
    print("| scheme | killed at | again at | in the checkpoint of | unbroken | resumed | alike |")
    print("|---|---:|---:|---:|---|---|---|", flush=True)
    for scheme in args.schemes or SCHEMES:
        with tempfile.TemporaryDirectory() as folder:
            line, alike = row(scheme, Path(folder), rng)
        print(line, flush=True)
        good = good and alike
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
