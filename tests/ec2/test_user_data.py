"""The hour at which a node ends itself, set when it starts. systemd itself is not run: its own checker reads the units."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from psnode_ec2.requests import user_data

# in a mount namespace of its own, with an /etc/systemd/system of its own
INSIDE = """
set -e
mkdir -p system /etc/systemd/system
mount --bind system /etc/systemd/system
PATH=$PWD/bin:$PATH sh -c "$1"
"""


def test_without_a_limit_there_is_no_end() -> None:
    assert user_data(0) == ""
    assert "psnode-warn" not in user_data(1)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounting needs root and unshare")
def test_the_end_of_a_node_outlives_a_restart(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("systemctl", "shutdown"):
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\necho {name} "$@" >>"{tmp_path}/said"\n')
        (tmp_path / "bin" / name).chmod(0o755)
    before = time.time()
    line = ["unshare", "--mount", "bash", "-c", INSIDE, "inside", user_data(36)]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    if done.stderr.startswith(("unshare: ", "mount: ")):
        pytest.skip("this system lets nobody mount")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "said").read_text().splitlines() == [
        f"shutdown -P +{36 * 60}",
        "systemctl daemon-reload",
        "systemctl enable --now psnode-end.timer",
        "systemctl daemon-reload",
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
