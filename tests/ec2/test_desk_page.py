"""docs/ec2-on-a-desk.md: its psnode-ec2 commands are run unchanged, against the moto server of the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
_ELSEWHERE = ("pip install", "moto_server", "kill")  # beginnings of lines that are not run, since fixtures do their work


@pytest.mark.long
def test_the_page_goes_from_beginning_to_end(front: Any, moto_port: int, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "ec2-on-a-desk.md").read_text()
    lines = "".join(re.findall(r"^```bash\n(.*?)^```$", text, re.M | re.S)).splitlines()
    script = "\n".join(line for line in lines if not line.startswith(_ELSEWHERE)).replace(":5000", f":{moto_port}")
    assert script.count("psnode-ec2 ") > 10
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "psnode-ec2").write_text(f'#!/bin/sh\necho "== $*"\nexec {sys.executable} -m psnode_ec2 "$@"\n')
    (tmp_path / "bin" / "psnode-ec2").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    kept |= {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, env=kept, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300
    )
    assert done.returncode == 0, done
    parts = dict(re.findall(r"^== (.*)\n((?:(?!== ).*\n)*)", done.stdout, re.M))
    statuses = re.findall(r"^== status\n((?:(?!== ).*\n)*)", done.stdout, re.M)
    assert "3 of 3 nodes of cluster desk, owner moto" in statuses[0]
    assert "0 of 3 nodes of cluster desk, owner moto" in statuses[1]
    calls = [line for line in parts["launch --dry-run"].splitlines() if "call " in line]
    assert len(calls) == len(set(calls)) > 5
    assert all(re.match(r"(would )?call \w+ \w+ in us-west-2 ", line) for line in calls)
    assert [line.split(" slots=")[1] for line in (tmp_path / "hostfile").read_text().splitlines()] == ["1"] * 3
    assert "together: " in parts["cost"]
    assert parts["list"].splitlines()[-1] == "1 cluster, 3 nodes"
    assert "psnode launch -n 2" in parts["run --dry-run -- train --max-steps 20 --train-dir runs/first"]
    removed = parts["shutdown --yes --discard"]
    assert re.findall(r"^removed (master|worker-\d|security group|key pair) ", removed, re.M) == [
        "master", "worker-0", "worker-1", "security group", "key pair",
    ]  # fmt: skip
