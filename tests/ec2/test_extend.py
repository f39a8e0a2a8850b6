"""A later end for running nodes: set on the node first, then in its tag."""

from __future__ import annotations

import datetime
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

# a node whose systemd is a folder in its home, with stand-ins for systemd's commands
INSIDE = """mkdir -p system bin
for name in systemctl shutdown; do
    printf '#!/bin/sh\\necho %s "$@" >>"%s/said"\\n' "$name" "$PWD" >bin/$name
    chmod +x bin/$name
done
export PATH=$PWD/bin:$PATH
HOME=$PWD exec unshare --mount bash -c 'mount --bind system /etc/systemd/system && eval "$1"' inside "$word"
"""


@pytest.fixture
def systemd(nodes: Any, tmp_path: Path) -> Any:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting needs root and unshare")
    (tmp_path / "bin" / "ssh").write_text(nodes.ssh.replace('HOME=$PWD exec bash -c "$word"\n', INSIDE))
    return nodes


def hours(api: Any) -> set[str]:
    found = [each for held in api.describe_instances()["Reservations"] for each in held["Instances"]]
    return {tag["Value"] for each in found for tag in each["Tags"] if tag["Key"] == "psnode:hours"}


def test_the_nodes_end_so_many_hours_after_their_start_whenever_that_is_said(systemd: Any, api: Any, aws: Any) -> None:
    reservations = api.describe_instances()["Reservations"]
    # other nodes may have started a second later
    started = min(each["LaunchTime"] for held in reservations for each in held["Instances"])
    shown = systemd.ec2("extend", "--max-hours", 48, "--dry-run")
    assert shown.code == 0, shown.err
    assert "would call ec2 create_tags" in shown.out
    assert "would run extend.sh on worker-1" in shown.out
    assert hours(api) == {"24"}
    done = systemd.ec2("extend", "--max-hours", 48, "--yes")
    assert done.code == 0, done.err
    # three m5.large for 24 more hours, at 0.096 USD an hour
    assert "let 3 of 3 nodes end themselves 48 h after their start, for up to 6.91 USD more" in done.err
    assert hours(api) == {"48"}
    end = started + datetime.timedelta(hours=48)
    for name in ("master", "worker-0", "worker-1"):
        home = systemd.home(name)
        (text,) = re.findall(r"^OnCalendar=(.*) UTC$", (home / "system/psnode-end.timer").read_text(), re.M)
        at = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
        assert end - datetime.timedelta(minutes=2) <= at <= end + datetime.timedelta(minutes=2)
        assert (home / "said").read_text().splitlines()[-2:] == [
            "systemctl enable --now psnode-end.timer", "systemctl enable --now psnode-warn.timer"
        ]  # fmt: skip
    assert f"ends itself {end:%Y-%m-%d %H:%M} UTC" in done.out
    aws.calls.clear()
    again = systemd.ec2("extend", "--max-hours", 48, "--yes")
    assert (again.code, "already" in again.out) == (0, True)
    assert "CreateTags" not in aws.actions()
    assert systemd.ec2("extend", "--max-hours", 0, "--yes").code == 0
    assert not (systemd.home("master") / "system/psnode-end.timer").exists()
    assert "shutdown -c" in (systemd.home("master") / "said").read_text()
    assert hours(api) == {"0"}


def test_a_node_that_cannot_be_told_keeps_its_tag(systemd: Any, api: Any, tmp_path: Path) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text("#!/bin/sh\necho no >&2\nexit 1\n")
    assert systemd.ec2("extend", "--max-hours", 48, "--yes").code == 1
    assert hours(api) == {"24"}


def test_an_end_that_is_over_is_refused(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from psnode_ec2 import cluster

    real = cluster.node_of
    monkeypatch.setattr(
        cluster, "node_of",
        lambda instance, workers: real({**instance, "LaunchTime": instance["LaunchTime"] - datetime.timedelta(hours=3)}, workers),
    )  # fmt: skip
    done = nodes.ec2("extend", "--max-hours", 2, "--yes")
    assert done.code == 2
    assert re.search(r"master has run for 3\.0 h, and max_hours is 2: set it to more, or end the nodes with shutdown", done.err)
