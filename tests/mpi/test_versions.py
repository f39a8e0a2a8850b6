"""Ranks with different versions refuse each other by name, before anything is trained or written."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

import psnode
from psnode.config.source import source

HOME = Path(psnode.__file__).parent
# psnode as on other hosts: with another version number, and with another commit in which only a comment differs
PROGRAM = """
import os, sys
rank, last = int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"]) - 1
other, number, *words = sys.argv[1:]
if rank == 2 and other:
    sys.path.insert(0, other)
import psnode
from psnode.cli import main
if rank == last:
    psnode.__version__ = number
sys.exit(main(words))
"""
FLAGS = ["--network", "FC", "--scheme", "dense", "--max-steps", "2", "--no-tensorboard", "--train-dir"]


@pytest.mark.long
def test_ranks_of_another_version_or_commit_are_refused_by_rank_and_host(mpirun: Any, tmp_path: Path) -> None:
    program = tmp_path / "other.py"
    program.write_text(PROGRAM)
    shutil.copytree(HOME, tmp_path / "other" / "psnode", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "other" / "psnode" / "errors.py").open("a") as file:
        file.write("# a later commit\n")
    job = mpirun(4, [program, tmp_path / "other", "9.9", "train", *FLAGS, tmp_path / "run"], forked=False)
    assert job.code == 2, job
    (line,) = [line for line in job.err.splitlines() if line.startswith("psnode: error: ")]
    host, own = socket.gethostname(), f"psnode {psnode.__version__} ({source()})"
    assert line.startswith(f"psnode: error: rank 0 runs {own}, but rank 2 on {host} runs {psnode.__version__} (")
    assert line.count(source()) == 2  # rank 0's and rank 3's
    assert line.endswith(
        f", rank 3 on {host} runs 9.9 ({source()}): bring every host to one commit, or add --allow-unlike-versions"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_one_who_knows_better_trains_with_them_and_is_told(mpirun: Any, tmp_path: Path) -> None:
    program = tmp_path / "other.py"
    program.write_text(PROGRAM)
    job = mpirun(2, [program, "", "9.9", "train", *FLAGS, tmp_path / "run", "--allow-unlike-versions"], forked=False)
    assert job.code == 0, job
    assert f"rank 1 on {socket.gethostname()} runs 9.9 ({source()}): allowed by --allow-unlike-versions" in job.err
