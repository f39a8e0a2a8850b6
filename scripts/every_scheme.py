"""Train two steps of every scheme with the installed psnode, with a master and two workers in this process.

    python scripts/every_scheme.py

Prints each scheme's result. The exit code is 1 if a scheme ends with a code other than 0.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import psnode
from psnode.config.schemes import SCHEMES
from psnode.tasks.classification import Classification

SETTINGS: dict[str, Any] = {"batch_size": 8, "max_steps": 2, "local": 2, "threads": 1, "tensorboard": False}


def trains(scheme: str, folder: Path) -> bool:
    """Train two steps with `scheme`, and print the result. Return True if the run ended with exit code 0."""
    config = psnode.Config(scheme=scheme, train_dir=folder / scheme, **SETTINGS)
    try:
        code = psnode.run(Classification("LeNet", "digits"), config)
    except Exception as error:
        print(f"{scheme}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
        return False
    print(f"{scheme}: {'ok' if code == 0 else f'exit code {code}'}", flush=True)
    return code == 0


def main() -> int:
    """Train with all schemes, even after a failure, and return the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        done = {scheme: trains(scheme, Path(folder)) for scheme in SCHEMES}
    print(f"{sum(done.values())} of {len(done)} schemes train")
    return 0 if all(done.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
