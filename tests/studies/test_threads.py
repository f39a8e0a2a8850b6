"""`python -m studies.threads`: its times from /proc equal those that a process has used, and are listed under the threads'
names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from psnode.errors import TransportError
from studies.harness import main
from studies.processor import Thread, between, machine, ranks, threads
from studies.threads import STUDY, Watch

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads Linux's /proc")
BUSY = """
import sys, threading, time
from studies.named import tell_names

def work(seconds, done=None, over=None):
    while time.thread_time() < seconds:
        pass
    if done is not None:
        done.set()
        over.wait()

tell_names()
done, over = threading.Event(), threading.Event()
threading.Thread(target=work, args=(0.2, done, over), name="encode-3", daemon=True).start()
done.wait()
work(0.4)
print("done", flush=True)
sys.stdin.read()
over.set()
"""


def test_threads_are_booked_by_rank_and_name_and_only_those_of_the_job(tmp_path: Path) -> None:
    environment = {**os.environ, "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
    command = [sys.executable, "-c", BUSY, str(tmp_path / "run")]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "done\n"
        found = threads(ranks(str(tmp_path / "run")))
        process.stdin.close()
    assert {thread[:2] for thread in found} == {(3, process.pid)}
    own = {thread.name: milliseconds for thread, milliseconds in found.items() if not thread.is_main}
    main_thread = {thread.number: milliseconds for thread, milliseconds in found.items() if thread.is_main}
    # the start of Python takes some time too
    assert 190 < own["encode-3"] < 10_000
    assert 390 < main_thread[process.pid] < 30_000
    assert ranks(str(tmp_path / "another")) == {}


def test_differences_follow_a_thread_through_a_change_of_its_name() -> None:
    before, renamed, new = Thread(1, 70, 71, "python"), Thread(1, 70, 71, "encode-1"), Thread(1, 70, 72, "lane-0")
    assert between({before: 5.0}, {renamed: 7.5, new: 1.0}) == {renamed: 2.5, new: 1.0}


def test_the_machine_spends_its_time_somewhere() -> None:
    first = machine()
    assert {"user", "system", "idle"} <= first.keys()
    assert sum(machine().values()) >= sum(first.values()) > 0


def test_books_that_were_not_read_in_time_are_no_result() -> None:
    with Watch("nothing that runs", 1, 2, lambda: 0) as watch:
        pass
    with pytest.raises(TransportError, match="take more --steps"):
        watch.read()


@pytest.mark.long
@pytest.mark.serial
def test_a_job_and_its_floor_are_measured_by_role(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mpi4py")
    path = tmp_path / "threads.json"
    command = ["--network", "FC", "--dataset", "digits", "-n", "2", "--batch-size", "4", "--steps", "400"]
    assert main(STUDY, [*command, "--warmup", "2", "--rounds", "1", "--json", str(path)]) == 0
    [found] = json.loads(path.read_text())["measured"]
    used = found["job"]["threads"]
    assert {"main thread", "encoder", "MPI thread"} <= used["worker"].keys()
    assert {"main thread", "lanes", "MPI thread"} <= used["master"].keys()
    assert min(used["worker"]["main thread"], used["master"]["lanes"], found["floor"]["threads"]["worker"]["main thread"]) > 0
    assert found["job"]["step_ms"] > 0 and found["floor"]["step_ms"] > 0
    assert "| the master, lanes |" in capsys.readouterr().out
