"""The line about an uncompressed downlink: printed once, with the share of bytes that the run's records show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.jobs.job import run


def lines(train_dir: Path, capfd: pytest.CaptureFixture[str], **changed: Any) -> list[str]:
    """Return the lines about the downlink that a run of two workers and three steps prints."""
    settings = {"batch_size": 8, "max_steps": 3, "eval_freq": 0, "local": 2, "threads": 1, "tensorboard": False}
    assert run(Config(train_dir=train_dir, **{**settings, **changed})) == 0
    return [line for line in capfd.readouterr().err.splitlines() if line.startswith("psnode: downlink: ")]


def test_the_share_is_that_of_an_ordinary_step(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    [line] = lines(tmp_path, capfd, scheme="atomo", downlink="dense")
    # the first record also counts the initial weights
    second = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1])
    share = 100 * second["downlink_bytes"] / (second["uplink_bytes"] + second["downlink_bytes"])
    found = re.fullmatch(r"psnode: downlink: dense, (\d+) % of all bytes", line)
    assert found, line
    assert int(found[1]) == pytest.approx(share, abs=1)
    assert int(found[1]) > 95  # about 30 kB of 1.7 MB go up


@pytest.mark.parametrize(("scheme", "megabytes", "milliseconds"), [("dense", "1.72", 276), ("fp16", "0.86", 138)])
def test_codecs_that_only_round_say_what_the_masters_link_has_to_carry(
    scheme: str, megabytes: str, milliseconds: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Check the line's figures: LeNet has 431 080 parameters, and 2 workers x 4 bytes x 8 bits at 100 Mbit/s take 275.9 ms."""
    [line] = lines(tmp_path, capfd, scheme=scheme)
    assert line.startswith(f"psnode: downlink: {scheme}, 50 % of all bytes; 2 x {megabytes} MB through the master's link take ")
    assert f"take {milliseconds} ms at 100 Mbit/s" in line


def test_a_coded_downlink_is_not_spoken_of(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert lines(tmp_path, capfd, scheme="qsgd") == []


def test_where_workers_pass_weights_on_the_masters_link_carries_the_gradients_of_all(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    [line] = lines(tmp_path, capfd, scheme="fp16", codec="identity", downlink="fp16", topology="star:down=tree", local=3)
    assert "; 3 x 1.72 MB through the master's link take " in line
