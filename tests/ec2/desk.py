"""A user's desk without real nodes: a stand-in for ssh runs a shell in one folder per node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
# HostKeyAlias names the node, and bash gets the last word
SSH = """#!/bin/bash
for word; do
    [[ $word != HostKeyAlias=* ]] || node=${word#*=}
done
mkdir -p "$NODES/$node"
cd "$NODES/$node"
HOME=$PWD exec bash -c "$word"
"""
KEY = "AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43  # 32 zeros
CONSOLE = f"-----BEGIN SSH HOST KEY KEYS-----\nssh-ed25519 {KEY} root@node\n-----END SSH HOST KEY KEYS-----\n"


class Nodes(NamedTuple):
    """A launched cluster. `ec2` runs the tool in this process, and `start` in a new process; `home` returns the folder of a
    node.
    """

    ec2: Callable[..., Any]
    start: Callable[..., subprocess.Popen[str]]
    home: Callable[[str], Path]
    ssh: str = SSH

    @staticmethod
    def tree(folder: Path) -> dict[str, bytes]:
        """Return the contents of all files below `folder`, by relative path."""
        return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}

    @staticmethod
    def wait_for(look: Callable[[], bool], seconds: float = 60.0) -> None:
        """Block until `look` returns True; fail after `seconds`."""
        end = time.monotonic() + seconds
        while not look():
            assert time.monotonic() < end, "it never came"
            time.sleep(0.05)


def launched(ec2: Callable[..., Any], aws: Any, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Launch a cluster whose nodes are folders. They are named by instance id, and lie in the folder that the environment
    variable NODES names.
    """

    def boot(action: str, form: dict[str, str], body: bytes) -> None:
        if action == "RunInstances":
            aws.consoles.update(dict.fromkeys(re.findall(r"<instanceId>(.*?)</instanceId>", body.decode()), CONSOLE))

    aws.after = boot
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(SSH)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    (tmp_path / "desk").mkdir()
    monkeypatch.chdir(tmp_path / "desk")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("NODES", str(tmp_path / "nodes"))
    assert ec2("launch", "--yes").code == 0
    ids = dict(re.findall(r"^(\S+) +(i-\S+)", ec2("status").out, re.M))

    def start(*words: object) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "psnode_ec2", str(words[0]), "--config", str(config), *map(str, words[1:])]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(line, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, start_new_session=True, **pipes)

    def home(name: str) -> Path:
        path = tmp_path / "nodes" / ids[name]
        path.mkdir(parents=True, exist_ok=True)
        return path

    return Nodes(ec2, start, home)
