"""The times that scripts/processor_time.py reads off /proc are those a process knows to have used."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUSY = """
import sys, threading, time
def work(seconds):
    while time.thread_time() < seconds:
        pass
thread = threading.Thread(target=work, args=(0.2,))
thread.start(); thread.join(); work(0.4)
print("done", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads Linux's /proc")
def test_threads_are_booked_by_rank_and_only_those_of_the_job(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("processor_time", ROOT / "scripts" / "processor_time.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    environment = {**os.environ, "OMPI_COMM_WORLD_RANK": "3"}
    command = [sys.executable, "-c", BUSY, str(tmp_path / "run")]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "done\n"
        found = script.threads(tmp_path / "run")
        process.stdin.close()
    # the thread that ended is no longer there; starting Python costs some time of its own
    assert list(found) == [(3, process.pid, process.pid)]
    assert 390 < found[3, process.pid, process.pid] < 30_000
    assert script.threads(tmp_path / "another") == {}
