"""Scripts with the names of ATOMO's scripts, tested without a cluster; test_chain.py runs run_psnode.sh on one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script(name: str, *words: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    line = ["bash", str(ROOT / "scripts" / name), *map(str, words)]
    full = {**os.environ, "PSNODE_VENV": sys.prefix, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(line, cwd=cwd, env=full, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def test_data_are_prepared_and_counted(tmp_path: Path) -> None:
    done = script("data_prepare.sh", "digits", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "digits: 1437 examples to train with and 360 to test with, in data\n"


def test_data_that_do_not_exist_end_with_one_line(tmp_path: Path) -> None:
    done = script("data_prepare.sh", "digitz", cwd=tmp_path)
    assert done.returncode != 0
    assert re.fullmatch(r"data_prepare.sh: error: .*digits.*\n", done.stderr)


@pytest.mark.parametrize("name", ["run_psnode.sh", "evaluate.sh", "data_prepare.sh"])
@pytest.mark.parametrize("open_to", [".", "bin"])
def test_programs_that_others_may_replace_are_not_executed(tmp_path: Path, name: str, open_to: str) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    for program in ("psnode", "python"):
        (venv / "bin" / program).write_text("#!/bin/sh\ntouch executed\n")
        (venv / "bin" / program).chmod(0o755)
    (tmp_path / "hosts_address").write_text("172.31.0.1\n172.31.0.2\n")
    (venv / open_to).chmod(0o777)
    done = script(name, cwd=tmp_path, PSNODE_VENV=str(venv))
    assert done.returncode == 2
    assert f"error: everybody may write into {venv}" in done.stderr
    assert not (tmp_path / "executed").exists()
    (venv / open_to).chmod(0o755)
    assert script(name, cwd=tmp_path, PSNODE_VENV=str(venv)).returncode == 0
    assert (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["run_psnode.sh", "remote_script.sh"])
def test_without_hosts_nothing_is_started(tmp_path: Path, name: str) -> None:
    done = script(name, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"{name}: error: hosts_address cannot be read")


def test_a_master_without_workers_trains_nothing(tmp_path: Path) -> None:
    (tmp_path / "hosts_address").write_text("# mine\n172.31.0.1\n\n")
    done = script("run_psnode.sh", cwd=tmp_path)
    assert done.returncode == 2
    assert "names 1 hosts" in done.stderr


def test_every_host_is_set_up_even_if_one_fails(tmp_path: Path) -> None:
    """Check that the script sets up every host, although a stand-in for ssh fails for one; only the loop is under test."""
    (tmp_path / "ssh").write_text('#!/bin/sh\ncat >/dev/null\necho "$@" >>reached\n[ "$3" != 10.0.0.2 ]\n')
    (tmp_path / "ssh").chmod(0o755)
    (tmp_path / "hosts").write_text("10.0.0.1\n10.0.0.2\n10.0.0.3\n")
    done = script("remote_script.sh", "hosts", cwd=tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin", PSNODE_MPI="system")
    assert done.returncode == 1
    assert "10.0.0.2 failed" in done.stderr
    reached = (tmp_path / "reached").read_text().splitlines()
    assert [line.split()[2] for line in reached] == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    assert all("PSNODE_MPI=system" in line and "/scripts/pre_run.sh" in line for line in reached)


def test_the_container_gets_all_that_a_wheel_is_made_of() -> None:
    from psnode_ec2.preparing import SOURCES

    copied = re.findall(r"^COPY (.+) (\S+)$", (ROOT / "Dockerfile").read_text(), re.M)
    there = {(name if target == "./" else target): ROOT / name for names, target in copied for name in names.split()}
    assert all(there[name].samefile(ROOT / name) for name in SOURCES)
