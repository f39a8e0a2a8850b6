"""Comparison of every scheme's final weights in two checkouts: scripts/compare_hashes.py OTHER [--workers P]... [--scheme S]...

Each scheme trains LeNet on the embedded digits for 8 steps under `psnode launch`, with the code of this checkout and with the
code of OTHER. Overlap is on, and each scheme uses its own downlink. Prints a Markdown table of the hashes. The exit code is 1
if any hashes differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["--batch-size", "8", "--threads", "1", "--no-tensorboard", "--eval-freq", "0", "--seed", "3", "--max-steps", "8"]
SECONDS = 600


def schemes() -> list[str]:
    """Return the names of all schemes of this checkout."""
    from psnode.config.schemes import SCHEMES

    return list(SCHEMES)


def model_hash(checkout: Path, scheme: str, workers: int) -> str:
    """Return the hash of a job's final weights. If the job fails, return its exit code and the last line that it printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "psnode", "launch", "-n", str(workers), "--", "train", "--scheme", scheme, *FLAGS]
        done = subprocess.run(
            [sys.executable, *command, "--train-dir", f"{folder}/run"],
            cwd=folder, env={**os.environ, "PYTHONPATH": str(checkout)}, capture_output=True, text=True, timeout=SECONDS,
        )  # fmt: skip
        if done.returncode:
            return f"exit {done.returncode}: {(done.stderr.strip().splitlines() or ['nothing said'])[-1]}"
        return str(json.loads(Path(folder, "run", "summary.json").read_bytes())["model_hash"])


def main() -> int:
    """Compare the checkouts, and return the exit code: 1 if any hashes differ, otherwise 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("other", type=Path, help="a checkout of another commit")
    parser.add_argument("--workers", type=int, action="append")
    parser.add_argument("--scheme", action="append")
    given = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    print("| scheme | workers | this | other | |\n|---|---:|---|---|---|", flush=True)
    unlike = 0
    for scheme in given.scheme or schemes():
        for workers in given.workers or (2, 3):
            here, there = (model_hash(checkout.resolve(), scheme, workers) for checkout in (ROOT, given.other))
            unlike += here != there
            print(f"| {scheme} | {workers} | {here} | {there} | {'equal' if here == there else 'UNLIKE'} |", flush=True)
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
