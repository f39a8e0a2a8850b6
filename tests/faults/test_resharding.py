"""The remaining workers take a dead worker's examples from the next epoch on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode.records.history import violations

pytestmark = pytest.mark.serial

TASK = """
import json, os, time
from pathlib import Path
from psnode.tasks.classification import Classification

class Told:
    def __init__(self, data):
        self.data, self.drawn, self.gate = data, 0, Path(__file__).with_name("killed")
        self.file = Path(__file__).with_name("drawn-" + os.environ["OMPI_COMM_WORLD_RANK"])
    def __len__(self):
        return len(self.data)
    def batch(self, indices, rng):
        self.drawn += 1
        while self.drawn > 10 and not self.gate.exists():  # somebody is killed in the first epoch
            time.sleep(0.01)
        with self.file.open("a") as file:
            file.write(json.dumps(indices.tolist()) + "\\n")
        return self.data.batch(indices, rng)

class Digits(Classification):
    def __init__(self, options=None):
        super().__init__(network="LeNet", dataset="digits", data_dir=None, download=False, seed=1, options={})
    def train_data(self):
        return Told(super().train_data())
"""


@pytest.mark.sweep
@pytest.mark.parametrize("rule", [(), ("--consistency", "kofn", "--num-aggregate", "3")], ids=["bsp", "kofn"])
def test_the_others_take_a_killed_workers_examples_in_the_next_epoch(
    launched: Callable[..., Any], tmp_path: Path, rule: tuple[str, ...]
) -> None:
    """Check that the second epoch, 29 steps of 2 x 24, draws 1392 of 1437 digits once, after 19 steps of 3 x 24 in the first
    epoch.

    Each step of the first epoch takes all three workers, so that no late worker takes its examples into the second epoch.
    """
    (tmp_path / "task.py").write_text(TASK)
    flags = ["--task", str(tmp_path / "task.py"), "--batch-size", "24", "--epochs", "2", "--record-history", *rule]
    job = launched(3, *flags)
    job.wait_for_step(3)
    os.kill(job.pid(2), signal.SIGKILL)
    end = time.monotonic() + 300
    while not job.events() and time.monotonic() < end:
        time.sleep(0.05)
    (tmp_path / "killed").touch()
    code, out = job.end()
    assert code == 0, out
    assert [(event["event"], event["step"], event["rank"]) for event in job.events()[1:]] == [("resharded", 19, None)]
    assert job.summary()["steps"] == 19 + 29
    records = job.records()
    assert [records[step - 1]["epoch"] for step in (19, 48)] == [1.0, 2.0]
    assert json.loads((job.train_dir / "config.json").read_bytes())["parts"] == [[0, 3], [19, 2]]
    assert violations(job.train_dir) == []
    drawn = []
    for rank in (1, 3):
        lines = (tmp_path / f"drawn-{rank}").read_text().splitlines()
        drawn += [example for line in lines[-29:] for example in json.loads(line)]
    assert len(drawn) == len(set(drawn)) == 29 * 48
