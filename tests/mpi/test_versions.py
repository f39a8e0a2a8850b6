"""Ranks of unlike versions refuse each other by name, before anything is trained or written."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import psnode

# psnode as the other host has it: only its number differs
PROGRAM = """
import os, sys
import psnode
from psnode.cli import main
if os.environ["OMPI_COMM_WORLD_RANK"] in sys.argv[1].split(","):
    psnode.__version__ = "9.9"
sys.exit(main(sys.argv[2:]))
"""


def test_ranks_of_another_version_are_refused_by_name(mpirun: Any, tmp_path: Path) -> None:
    program = tmp_path / "other.py"
    program.write_text(PROGRAM)
    flags = ["--network", "FC", "--scheme", "dense", "--max-steps", "2", "--no-tensorboard", "--train-dir", tmp_path / "run"]
    job = mpirun(4, [program, "2,3", "train", *flags])
    assert job.code == 2, job
    host = socket.gethostname()
    line = (
        f"rank 0 runs psnode {psnode.__version__}, but rank 2 on {host} runs 9.9, rank 3 on {host} runs 9.9: "
        "install one version on every host"
    )
    assert f"psnode: error: {line}" in job.err.splitlines()
    assert not (tmp_path / "run").exists()
