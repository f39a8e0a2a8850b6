"""The hour at which a node ends itself, set when it starts. systemd is not run; its own checker reads the units."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.instance_requests import user_data
from psnode_ec2.settings import Settings

# in a new mount namespace, with a private /etc/systemd/system
INSIDE = """
set -e
mkdir -p system /etc/systemd/system
mount --bind system /etc/systemd/system
PATH=$PWD/bin:$PATH sh -c "$1"
"""


def script(role: str = "worker", **settings: Any) -> str:
    return user_data(Settings(name="ends", **settings), role)


def test_without_a_limit_there_is_no_end() -> None:
    assert script(max_hours=0) == ""


@pytest.mark.parametrize(
    ("role", "settings", "ends"),
    [
        ("worker", {}, True),
        ("master", {}, False),  # the master holds the trained weights
        ("master", {"nfs_ip_address": "10.0.0.9", "nfs_mount_point": "/mnt/s"}, True),
    ],
)
def test_an_idle_node_ends_itself_if_nothing_is_lost_with_it(role: str, settings: dict[str, Any], ends: bool) -> None:
    assert ("psnode-idle" in script(role, idle_minutes=30, **settings)) == ends
    assert "psnode-idle" not in script(role, **settings)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting needs root and unshare")
def test_the_end_of_a_node_outlives_a_restart(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("systemctl", "shutdown"):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\necho {name} "$@" >>"{tmp_path}/said"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    before = time.time()
    line = ["unshare", "--mount", "bash", "-c", INSIDE, "inside", script(max_hours=36)]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    if done.stderr.startswith(("unshare: ", "mount: ")):
        pytest.skip("this system lets nobody mount")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "said").read_text().splitlines() == [
        "shutdown -c",
        f"shutdown -P +{36 * 60}",
        "systemctl daemon-reload",
        "systemctl enable --now psnode-end.timer",
        "systemctl enable --now psnode-warn.timer",
    ]
    timer = (tmp_path / "system" / "psnode-end.timer").read_text()
    assert "Persistent=true" in timer
    assert "WantedBy=timers.target" in timer
    (end,) = re.findall(r"^OnCalendar=(.*) UTC$", timer, re.M)
    at = datetime.strptime(end, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    assert int(before) + 36 * 3600 <= at <= time.time() + 36 * 3600
    (hour,) = re.findall(r"^OnCalendar=(.*) UTC$", (tmp_path / "system" / "psnode-warn.timer").read_text(), re.M)
    assert datetime.strptime(hour, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp() == at - 3600
    if shutil.which("systemd-analyze"):
        units = [tmp_path / "system" / f"psnode-{name}.{kind}" for name in ("end", "warn") for kind in ("service", "timer")]
        for command in (["verify", *units], ["calendar", f"{end} UTC"]):
            checked = subprocess.run(["systemd-analyze", *command], capture_output=True, text=True)
            assert checked.returncode == 0, checked.stderr


IDLE = """
set -e
mkdir -p system sbin
mount --bind system /etc/systemd/system
mount --bind sbin /usr/local/sbin
mount -t tmpfs tmpfs /run
PATH=$PWD/bin:$PATH
sh -c "$1"
for look in start quiet login "watcher" late; do
    case $look in
    quiet) touch -d '29 minutes ago' /run/psnode-busy ;;
    login) echo 'sshd: ada@notty' >processes; touch -d '99 minutes ago' /run/psnode-busy ;;
    watcher) echo '/v/bin/python psnode/watch_interruption.py psnode' >processes ;;
    late) touch -d '31 minutes ago' /run/psnode-busy ;;
    esac
    echo "$look" >>said
    sbin/psnode-idle ada 30
done
"""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting needs root and unshare")
def test_a_node_ends_when_nothing_of_the_users_has_run_for_so_long(tmp_path: Path) -> None:
    """Check that a node ends unless a user is logged in; processes that this tool left do not keep it up."""
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("systemctl", ""),
        ("shutdown", f'echo shutdown "$@" >>"{tmp_path}/said"'),
        ("ps", 'cat processes; [ "$2" = ada ]'),
    ):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "processes").touch()
    text = script(max_hours=0, idle_minutes=30, ssh_username="ada")
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", IDLE, "inside", text], cwd=tmp_path, capture_output=True, text=True
    )
    if done.stderr.startswith(("unshare: ", "mount: ")):
        pytest.skip("this system lets nobody mount")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "said").read_text().split("\n") == ["start", "quiet", "login", "watcher", "late", "shutdown -P now", ""]
    assert "ExecStart=/usr/local/sbin/psnode-idle ada 30" in (tmp_path / "system" / "psnode-idle.service").read_text()
    if shutil.which("systemd-analyze"):
        timer = tmp_path / "system" / "psnode-idle.timer"
        checked = subprocess.run(["systemd-analyze", "verify", timer], capture_output=True, text=True)
        assert "psnode-idle.timer" not in checked.stderr


def test_idle_minutes_leave_time_for_setup() -> None:
    with pytest.raises(SettingsError, match="idle_minutes must be 0, for never, or at least 5"):
        Settings(name="ends", idle_minutes=3)
