"""A link that is cut: no message arrives, and no exception is raised."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("cut_program.py")


@pytest.mark.long
def test_a_worker_that_is_cut_off_is_put_aside_and_takes_part_again_when_its_link_is_back(netlab: Any, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    done = netlab("--hosts", 3, "--rate", "none", "--", sys.executable, PROGRAM, tmp_path / "run", timeout=400)
    assert done.code == 0, done
    assert "ended with 75, told suspended returned, violations []" in done.out, done
