"""Does a killed run end as an unbroken one? scripts/resume_table.py [--seed S] [SCHEME ...]  prints a Markdown table.

For every scheme: a run of two workers on the CPU that nothing happens to; the same run in a process of its own that gets SIGKILL
at a random step, and once more in the first step after it was resumed; and what is left of it resumed to its end. Equal are
the hash of the final weights and the losses of all steps. The exit code is 1 if any scheme fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # what is tried is this checkout
STEPS, EVERY = 14, 3
FLAGS = ["--local", "2", "--batch-size", "8", "--threads", "1", "--no-tensorboard", "--lr", "0.005", "--eval-freq", str(EVERY)]
SECONDS = 240


def start(train_dir: Path, scheme: str, *flags: str) -> subprocess.Popen[str]:
    """A run of `scheme` in a process of its own."""
    command = [sys.executable, "-m", "psnode", "train", *FLAGS, "--max-steps", str(STEPS), "--scheme", scheme, *flags]
    return subprocess.Popen(
        [*command, "--train-dir", str(train_dir)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def records(train_dir: Path) -> list[dict[str, Any]]:
    """The complete step records of a run."""
    file = train_dir / "metrics.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def last_step(train_dir: Path) -> int:
    """The step of the newest record."""
    return max((int(record["step"]) for record in records(train_dir)), default=0)


def kill_after(train_dir: Path, process: subprocess.Popen[str], step: int) -> int:
    """SIGKILL once the record of `step` is there; the step that the run had reached."""
    end = time.monotonic() + SECONDS
    while last_step(train_dir) < step and process.poll() is None and time.monotonic() < end:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return last_step(train_dir)


def finish(process: subprocess.Popen[str]) -> None:
    """Wait for a run that must end well."""
    out, _ = process.communicate(timeout=SECONDS)
    if process.returncode:
        raise SystemExit(out)


def outcome(train_dir: Path) -> tuple[str, list[float]]:
    """Hash of the weights, and the losses of all steps."""
    return json.loads((train_dir / "summary.json").read_bytes())["model_hash"], [record["loss"] for record in records(train_dir)]


def row(scheme: str, folder: Path, rng: random.Random) -> tuple[str, bool]:
    """A line of the table, and whether the runs end alike."""
    finish(start(folder / "whole", scheme))
    parts = folder / "parts"
    first = kill_after(parts, start(parts, scheme), rng.randint(1, STEPS - 3))
    written = parts / "checkpoints" / "latest"
    base = int(written.read_text().strip().removeprefix("step-")) if written.exists() else 0
    second = kill_after(parts, start(parts, scheme, "--resume"), base + 1)
    finish(start(parts, scheme, "--resume"))
    whole, resumed = outcome(folder / "whole"), outcome(parts)
    alike = whole == resumed
    return f"| {scheme} | {first} | {second} | {whole[0][:16]} | {resumed[0][:16]} | {'yes' if alike else 'NO'} |", alike


def main() -> int:
    """Print the table."""
    from psnode.schemes import SCHEMES

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("schemes", nargs="*", metavar="SCHEME", default=[])
    args = parser.parse_args()
    rng, good = random.Random(args.seed), True
    print("| scheme | killed at | again at | unbroken | resumed | alike |\n|---|---:|---:|---|---|---|")
    for scheme in args.schemes or SCHEMES:
        with tempfile.TemporaryDirectory() as folder:
            line, alike = row(scheme, Path(folder), rng)
        print(line, flush=True)
        good = good and alike
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
