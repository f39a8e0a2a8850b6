"""A stopped worker in a simulated job, figures by hand, and passes that wait as long as they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

import psnode
from psnode.config.load import load
from psnode.jobs.planning.profile import GroupCosts, HostCosts, Profile, SchemeCosts, TensorTimes
from psnode.jobs.simulating.disturbances import Spread
from studies.harness import page
from studies.paced_task import SLICE, PacedTask, wait
from studies.stopped_worker import ROOT, STUDY, Options, common, simulated_course


def by_hand(seconds: float) -> Profile:
    """Return the profile of a model with one group, whose passes take `seconds`, and which costs next to nothing otherwise."""
    costs = GroupCosts(up=100, down=100, encode=1e-5, apply=1e-5, decode=1e-5, update=1e-5, ready=1e-4, needed=1e-5)
    host = HostCosts(send=1e-10, receive=1e-10, message=1e-5, add=1e-10, cores=8, crowded=1.0)
    scheme = SchemeCosts((costs,), bookkeeping=1e-5, extra=1e-5, lossy=False)
    tensor = TensorTimes((5, 5), ready=1e-4, needed=1e-5)
    return Profile("by hand", 1, seconds - 1e-4, 1e-4, 1e-5, (tensor,), host, {"dense": scheme}, {})


def test_a_stopped_worker_contributes_to_no_version_meanwhile() -> None:
    """Check a job in which a round closes without the slowest of three workers: passes of 50 ms, and a stop of 1 s."""
    options = Options(workers=3, seconds=0.05, jitter=0.0, versions=40, rank=2, stop=0.505, pause=1.0)
    found = simulated_course(options, load({"consistency": "kofn", "num_aggregate": 2}, {}), by_hand(0.05))
    assert all(len(added) >= 2 for added in found.added)
    without = [number for number, added in enumerate(found.added, 1) if 2 not in {rank for rank, _ in added}]
    meanwhile = set(range(11, 31))  # twenty versions in one second
    assert len(meanwhile & set(without)) >= 19
    assert found.seconds == pytest.approx(39 * 0.05, rel=0.05)


def test_gradients_in_common_are_counted_version_by_version() -> None:
    one = [frozenset({(1, 0), (2, 0)}), frozenset({(1, 1)})]
    assert common(one, one) == 1.0
    assert common(one, [frozenset({(1, 0)}), frozenset({(2, 0), (1, 1)})]) == pytest.approx(2 / 4)


def test_a_wait_leaves_out_the_time_in_which_the_process_is_stopped() -> None:
    """Check a wait of 2 s that is stopped for 1 s: the process itself measures at least 3 s, less the slices that count."""
    program = "import time; from studies.paced_task import wait; t = time.monotonic(); print(flush=True)"
    program += "; wait(2.0); print(time.monotonic() - t)"
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        os.kill(process.pid, signal.SIGSTOP)
        threading.Event().wait(1.0)
        os.kill(process.pid, signal.SIGCONT)
        assert float(process.communicate(timeout=60)[0]) >= 3 - 2 * SLICE
    finally:
        process.kill()


def test_a_batch_has_one_factor_in_all_passes() -> None:
    """Check that batches get the factors of the rank in the order of their first passes."""
    task, draw = PacedTask({"jitter": "0.3", "seed": "5"}), Spread(0.3, (), 5).factors(psnode.rank())
    one, two = (torch.tensor(indices) for indices in ([3, 4], [1, 2]))
    assert [task.factor(each) for each in (one, one, two, one)] == [first := draw(), first, draw(), first]


def test_a_wait_is_no_shorter_than_it_says() -> None:
    began = time.perf_counter()
    wait(0.05)
    assert time.perf_counter() - began >= 0.05


def test_the_page_gives_both_times() -> None:
    row = {"consistency": "asp", "workers": 1.0, "gradients": 0.99, "real": 10.0, "simulated": 9.0}
    result = {
        "date": "2026-01-01", "cpu": "a processor", "cores": 2, "workers": 4, "versions": 80, "seconds": 0.2, "rank": 2,
        "pause": 5.0, "rows": [row],
    }  # fmt: skip
    assert "| asp | 100.0 | 99.0 | 10.00 | 9.00 | -10.0 |" in page(STUDY, result)
    assert STUDY.passed(result)
    assert not STUDY.passed({**result, "rows": [{**row, "simulated": 8.0}]})
