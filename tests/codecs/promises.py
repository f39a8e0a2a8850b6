"""The contract tests of codecs, run for one codec from a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def check_promises(spec: str, *names: str) -> None:
    """Run tests/codecs/test__NAME.py for each name with --codec `spec`, and check that more than 100 tests run and all pass."""
    tests = [f"tests/codecs/test__{name}.py" for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "--codec", spec],
        cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(done.stdout.rpartition(" passed")[0].split()[-1]) > 100
