"""Runs that are killed three times with SIGKILL end like unbroken runs, for three of the schemes in scripts/resume_table.py."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import resume_table


@pytest.mark.serial
@pytest.mark.sweep
@pytest.mark.parametrize("scheme", ["dgc", "qsgd", "signum"])
def test_a_run_that_is_killed_three_times_ends_as_an_unbroken_one(scheme: str, tmp_path: Path) -> None:
    line, alike = resume_table.row(scheme, tmp_path, random.Random(0))
    assert alike, line
