"""Runs of earlier versions continue bit for bit, from directories that commit 050e485 wrote (mpirun, two workers, 7 steps):

    psnode launch -n 2 -- train --task old_task --scheme SCHEME --batch-size 8 --threads 1 --lr 0.05 --seed 3 --eval-freq 0 \
        --no-tensorboard --max-steps 7 --train-dir runs/SCHEME

The hashes below are those of this commit after 20 steps, with the variables of ARITHMETIC set. Linear algebra then uses code
paths that processors of several makers share. The probe detects processors that still compute differently.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config, settings
from psnode.config.declaration import ABSENT
from psnode.config.resolve import resolve
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan
from psnode.records.directory import saved_config
from tests.forking import Forking

RUNS = Path(__file__).parent / "old_runs"
ROOT = Path(__file__).resolve().parents[1]
ARITHMETIC = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "DNNL_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Haswell",
    "OMP_NUM_THREADS": "1",
}
PROBE = "9c3a984757c961936d56fa1b8dd29e22"
HASHES = {
    "dense": "eea33aed2c51d11ae59d6c30b787aaac",
    "qsgd": "e124c0963fa1efc5acde8d5e69fee265",
    "atomo": "74c288761b31785ce9b206e6c20bcbb2",
}


Run = Callable[..., str]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Yield a function that runs a Python program in `folder` with the arithmetic of the old runs, checks that it succeeds, and
    returns its output.
    """
    forking = Forking(ARITHMETIC)
    python, ranks = forking.launching()

    def ended(*command: str | Path, folder: Path) -> str:
        env = {**os.environ, **ranks, **ARITHMETIC, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
        line = [python, *map(str, command)]
        done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    yield ended
    forking.close()


@pytest.fixture(scope="module")
def arithmetic(run: Run) -> str:
    """Return the digest that identifies a processor's arithmetic."""
    return run("probe.py", folder=RUNS).strip()


@pytest.mark.serial
@pytest.mark.skipif(
    shutil.which("mpirun") is None and shutil.which("mpirun", path=Path(sys.executable).parent) is None, reason="no mpirun"
)
@pytest.mark.parametrize("scheme", HASHES)
def test_an_old_run_goes_on_bit_for_bit(run: Run, scheme: str, arithmetic: str, tmp_path: Path) -> None:
    shutil.copytree(RUNS, tmp_path, dirs_exist_ok=True)
    if arithmetic != PROBE:
        pytest.skip(f"this processor's arithmetic is another than that of the recorded runs: the probe gives {arithmetic}")
    launch = ["-m", "psnode", "launch", "-n", "2", "--", "train", "--resume"]
    run(*launch, "--task", "old_task", "--max-steps", "20", "--train-dir", scheme, folder=tmp_path)
    summary = json.loads((tmp_path / scheme / "summary.json").read_bytes())
    assert (summary["steps"], summary["model_hash"]) == (20, HASHES[scheme])
    assert json.loads((tmp_path / scheme / "config.json").read_bytes())["scheme"] == recorded()[scheme]


def recorded() -> dict[str, dict[str, Any]]:
    """Return the meaning of every scheme at commit 050e485, and the values of settings that records did not name then."""
    found = json.loads((RUNS / "schemes.json").read_bytes())
    return {name: {**scheme, "gathers_decay": False, "downlink_lead": 0.0} for name, scheme in found.items()}


@pytest.mark.parametrize("scheme", recorded())
def test_a_run_without_a_recorded_scheme_keeps_what_its_name_meant_then(scheme: str) -> None:
    assert resolve(Config(scheme=scheme), unrecorded=True).to_dict() == recorded()[scheme]


def test_a_run_without_a_recorded_scheme_keeps_what_is_refused_or_done_otherwise_now() -> None:
    """Check settings that are refused or resolved differently today: momentum on both sides, a warm-up that ends below the
    codec's ratio, a memory under a vote, and Nesterov without momentum.
    """
    twice = resolve(Config(scheme="topk", feedback="dgc"), unrecorded=True)
    assert (twice.momentum, twice.gathers_decay, Coding(Plan((), ()), twice).gathering) == (0.9, False, None)
    assert resolve(Config(scheme="dgc", feedback="ef"), unrecorded=True).momentum == 0
    assert resolve(Config(scheme="dgc:ratio=0.05"), unrecorded=True).ratio_warmup == (0.25, 0.0625, 0.015625, 0.004)
    assert resolve(Config(scheme="signsgd", feedback="ef"), unrecorded=True).feedback == "ef"
    assert resolve(Config(scheme="dgc", nesterov=True), unrecorded=True).momentum == 0
    assert resolve(Config(scheme="dense", min_compress_bytes=0), unrecorded=True).codec == "identity"


def test_settings_that_an_old_record_lacks_say_what_was_done_before() -> None:
    known = json.loads((RUNS / "dense" / "config.json").read_bytes())["config"].keys()
    assert [name for name in known if name not in settings()] == []
    assert [name for name, setting in settings().items() if (setting.rules.before is ABSENT) != (name in known)] == []
    assert saved_config(RUNS / "dense").scheme == "dense"
