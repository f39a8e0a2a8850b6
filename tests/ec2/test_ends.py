"""The hour at which nodes end themselves: reported before they start, while they run, and an hour in advance."""

from __future__ import annotations

import datetime
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode_ec2 import jobs
from psnode_ec2.cluster import Node
from psnode_ec2.end_times import notice, seconds_to_notice
from psnode_ec2.node_ssh import Access
from psnode_ec2.settings import Settings

NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def node(launched: datetime.datetime, hours: int, state: str = "running") -> Node:
    return Node("master", "master", "i-1", "m5.large", "b", state, False, "10.0.0.1", "", launched, "", hours=hours)


def test_the_prompt_says_what_is_lost_when(ec2: Callable[..., Any]) -> None:
    done = ec2("launch", "--dry-run", "--max-hours", 7)
    assert "; every node ends itself after 7 h, with its volume and what was trained on it" in done.err
    assert "ends itself" not in ec2("launch", "--dry-run", "--max-hours", 0).err


def test_status_says_when_each_node_ends_and_what_goes_with_it(ec2: Callable[..., Any], api: Any) -> None:
    assert ec2("launch", "--yes", "--max-hours", 7).code == 0
    # settings at the nodes' start count, not those of the file now
    shown = ec2("status", "--max-hours", 1)
    (first, *rest) = re.findall(r"^(?:master|worker-\d) +(\S+) .* ends itself (\S+ \S+) UTC$", shown.out, re.M)
    assert len(rest) == 2
    (held,) = api.describe_instances(InstanceIds=[first[0]])["Reservations"]
    end = held["Instances"][0]["LaunchTime"] + datetime.timedelta(hours=7)
    assert first[1] == f"{end:%Y-%m-%d %H:%M}"
    assert "a node that ends takes its volume with it: get what was trained before" in shown.out
    assert shown.err == ""


def test_in_the_last_hour_every_command_says_so(ec2: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert ec2("launch", "--yes", "--max-hours", 1).code == 0
    for words in (["status"], ["stop", "--dry-run"]):
        assert re.search(
            r"^the nodes end themselves at .* UTC, in (59|60|5\d) minutes, with all that lies on them", ec2(*words).err
        )


def test_the_notice_comes_an_hour_before_the_first_end() -> None:
    nodes = [node(NOON, 24), node(NOON - datetime.timedelta(hours=2), 24), node(NOON, 0), node(NOON, 1, "terminated")]
    assert seconds_to_notice(nodes, NOON) == 21 * 3600
    assert seconds_to_notice(nodes, NOON + datetime.timedelta(hours=23)) == 0
    assert seconds_to_notice([node(NOON, 0)], NOON) is None
    assert notice(nodes, NOON + datetime.timedelta(hours=20, minutes=59)) == ""
    assert "at 2026-01-02 10:00 UTC, in 59 minutes" in notice(nodes, NOON + datetime.timedelta(hours=21, minutes=1))


def test_who_follows_a_job_is_told_when_the_hour_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    process = subprocess.Popen(["sleep", "600"], text=True)

    def tell(text: str) -> None:
        told.append(text)
        process.kill()

    monkeypatch.setattr(jobs, "progress", tell)
    launched = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=22, minutes=59, seconds=59)
    way = Access(Settings(name="ends"), [node(launched, 24)], tmp_path / "known")
    assert jobs._ended(process, way) == -9
    (line,) = told
    assert line.startswith("the nodes end themselves at ")
