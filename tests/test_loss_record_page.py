"""Pages generated from the record of losses agree with the record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_pages_are_those_of_the_record() -> None:
    command = [sys.executable, "scripts/loss_record_page.py", "--check"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
