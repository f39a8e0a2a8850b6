"""Ranks on one machine share its cores, whatever their hosts are called; a resume may use other numbers of threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psnode.cli import main
from psnode.config.cores import usable_cores

pytestmark = pytest.mark.serial

# as on emulated hosts of one machine, each rank is told that it is alone on its host
PROGRAM = """
import os, socket, sys
rank = os.environ["OMPI_COMM_WORLD_RANK"]
os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1"
os.environ.pop("OMP_NUM_THREADS")
socket.gethostname = lambda: f"emulated-{rank}"
import torch
from psnode.cli import main
code = main(sys.argv[1:])
print(f"rank {rank} had {torch.get_num_threads()} threads", flush=True)
sys.exit(code)
"""
FLAGS = ["--network", "FC", "--dataset", "digits", "--scheme", "dense", "--batch-size", "8", "--no-tensorboard"]


def test_the_ranks_of_emulated_hosts_have_no_more_threads_together_than_the_machine_has_cores(
    mpirun: Any, tmp_path: Path
) -> None:
    program = tmp_path / "emulated.py"
    program.write_text(PROGRAM)
    job = mpirun(3, [program, "train", *FLAGS, "--max-steps", "2", "--train-dir", tmp_path / "run"])
    assert job.code == 0, job
    share = max(1, usable_cores() // 3)
    for rank in range(3):
        assert f"rank {rank} had {share} threads" in job.out
    assert f", {share} thread{'s' * (share > 1)} each" in job.err
    assert json.loads((tmp_path / "run" / "config.json").read_bytes())["config"]["threads"] == share


def test_a_resume_takes_stated_threads_and_tells_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train = ["train", *FLAGS, "--local", "1", "--train-dir", "run"]

    def threads_after(last: int, *more: str) -> tuple[int, bool]:
        assert main([*train, "--max-steps", str(last), *more]) == 0
        told = f"--threads was {recorded} and is" in capsys.readouterr().err
        return json.loads(Path("run/config.json").read_bytes())["config"]["threads"], told

    recorded = 0
    monkeypatch.delenv("OMP_NUM_THREADS")
    recorded = threads_after(1, "--threads", "3")[0]
    assert recorded == 3
    assert threads_after(2, "--resume") == (3, False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads_after(3, "--resume") == (2, True)
    recorded = 2
    assert threads_after(4, "--resume", "--threads", "1") == (1, True)
