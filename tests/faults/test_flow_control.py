"""Workers that receive nothing while rounds continue (stopped, or busy in Python): memory stays bounded, and they catch up."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode.exchange.flow_control import LEAST
from psnode.records.history import violations

pytestmark = pytest.mark.serial

SET = 4 * 431_080  # bytes of LeNet's weights
SLACK = 48 << 20  # for an interpreter that keeps running
BUSY = '''
"""LeNet on digits, whose second worker computes on its fourth batch until a file is there."""
import os
import time
from pathlib import Path

from psnode.tasks.classification import Classification

GATE = Path({gate!r})


class Busy(Classification):
    def __init__(self, config):
        super().__init__("LeNet", "digits", seed=1)
        self.batches = 0

    def loss(self, model, batch):
        self.batches += model.training
        while os.environ.get("OMPI_COMM_WORLD_RANK") == "2" and self.batches == 4 and not GATE.exists():
            time.sleep(0.01)
        return super().loss(model, batch)
'''


def resident(pid: int) -> int:
    """Return the bytes of memory that a process occupies."""
    return 1024 * int(re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1])  # type: ignore[index]


def wait_for_gradient(job: Any, rank: int, behind: int) -> None:
    """Block until a gradient of `rank` that was computed on a version later than `behind` is in a version."""
    end = time.monotonic() + 120
    while time.monotonic() < end and job.process.poll() is None:
        lines = (job.train_dir / "history.jsonl").read_text().splitlines(keepends=True)
        versions = [line for line in map(json.loads, lines[behind:-1]) if "groups" in line]
        if any(who == rank and based > behind for line in versions for who, _, based in line["groups"][0]):
            return
        time.sleep(0.1)
    pytest.fail(f"rank {rank} did not come back: {job.events()}")


@pytest.mark.long
@pytest.mark.parametrize("how", ["stopped", "busy"])
def test_what_a_worker_does_not_take_does_not_pile_up(how: str, launched: Callable[..., Any], tmp_path: Path) -> None:
    """Check the memory while a worker takes nothing for 150 versions, 259 MB, which are four times the limit. Every replica
    is compared, and no gradient is lost.
    """
    gate, task = tmp_path / "gate", tmp_path / "busy.py"
    task.write_text(BUSY.format(gate=str(gate)))
    flags = ["--task", str(task)] if how == "busy" else []
    job = launched(
        2, "--consistency", "asp", "--downlink", "dense", "--scheme", "dense", "--max-steps", "100000", "--record-history",
        "--hash-every", "1", "--pause-deadline", "600", "--norm-cap", "off", "--lr", "0.0001", "--momentum", "0", *flags,
    )  # fmt: skip
    job.wait_for_step(10)
    master, worker = job.pid(0), job.pid(2)
    if how == "stopped":
        os.kill(worker, signal.SIGSTOP)
    before = {"master": resident(master), "worker": resident(worker)}
    first = len(job.records())
    job.wait_for_step(first + 40)
    job.wait_for_step(first + 150)
    grown = {"master": resident(master) - before["master"], "worker": resident(worker) - before["worker"]}
    os.kill(worker, signal.SIGCONT)
    gate.touch()
    wait_for_gradient(job, 2, len(job.records()))
    job.process.send_signal(signal.SIGTERM)
    code, out = job.end()
    assert code == 75, out
    assert violations(job.train_dir, None) == []
    assert [event["event"] for event in job.events()] == []
    assert all(size <= LEAST + 3 * SET + SLACK for size in grown.values()), {who: size >> 20 for who, size in grown.items()}
