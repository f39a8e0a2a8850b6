"""Runs that get SIGKILL three times end as unbroken ones: three of the schemes that scripts/resume_table.py tries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "resume_table.py"


@pytest.mark.serial
@pytest.mark.parametrize("scheme", ["dgc", "qsgd", "signum"])
def test_a_run_that_is_killed_three_times_ends_as_an_unbroken_one(scheme: str) -> None:
    done = subprocess.run([sys.executable, SCRIPT, scheme], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith("| yes |")
