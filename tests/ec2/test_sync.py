"""The user's code on the nodes: the files that are copied and those that are not; the job runs in the copied folder."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from psnode_ec2.ec2_errors import SettingsError
from psnode_ec2.worktree import chosen, pack

SOURCES = {"own.py": "print(1)", "models/net.py": "x = 1", "data.csv": "1,2", ".env.example": "TOKEN="}
SECRETS = {
    ".env": "TOKEN=1",
    "deploy/id_ed25519": "x",
    "certs/server.pem": "x",
    "notes.txt": "-----BEGIN OPENSSH PRIVATE KEY-----\n",
}
REST = {".venv/bin/python": "x", "__pycache__/own.pyc": "x", ".git/config": "x"}


def grown(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=ada", "-c", "user.email=ada@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True)


def test_without_git_everything_goes_but_secrets_environments_and_caches(tmp_path: Path, keyfile: Path) -> None:
    tree = grown(tmp_path, SOURCES | SECRETS | REST)
    assert chosen(tree, keyfile) == (sorted(SOURCES), sorted(SECRETS))


def test_with_git_what_it_ignores_stays_here_and_secrets_that_it_tracks_too(tmp_path: Path, keyfile: Path) -> None:
    inner = grown(tmp_path / "inner", {"lib.py": "1", "ignored.bin": "1", ".gitignore": "*.bin\n"})
    tree = grown(tmp_path / "tree", SOURCES | SECRETS | {".gitignore": "data.csv\nruns/\n", "runs/x": "1", "gone.py": "1"})
    for each in (inner, tree):
        git(each, "init")
        git(each, "add", "-A")
        git(each, "commit", "-m", "first")
    git(tree, "submodule", "add", str(inner), "inner")
    grown(tree, {"new.py": "1", "inner/own.bin": "1"})
    (tree / "gone.py").unlink()
    taken, secret = chosen(tree, keyfile)
    wanted = {*SOURCES, ".gitignore", ".gitmodules", "new.py", "inner/lib.py", "inner/.gitignore", "inner/ignored.bin"}
    # git's own rule: a file added despite .gitignore is tracked; data.csv was not added
    assert set(taken) == wanted - {"data.csv", "inner/ignored.bin"}
    assert secret == sorted(SECRETS)
    assert chosen(tree / "models", keyfile) == (["net.py"], [])


def test_links_go_as_links_unless_they_lead_out_and_the_key_never(tmp_path: Path, keyfile: Path, capsys: Any) -> None:
    tree = grown(tmp_path / "tree", {"a/x.py": "1"})
    (tree / "b").symlink_to("a")
    (tree / "out").symlink_to("../..")
    (tree / "mine").symlink_to(keyfile)
    assert chosen(tree, keyfile) == (["a/x.py", "b"], ["mine"])
    assert f"leads out of {tree}: out" in capsys.readouterr().err


def test_a_tree_of_data_is_refused_with_what_helps(tmp_path: Path, keyfile: Path) -> None:
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(SettingsError, match=r"is 2\.1 GB in 1 file, weights the largest: put data on the nodes with put"):
        pack(tmp_path, tmp_path / "tar", keyfile)
    with pytest.raises(SettingsError, match="is no folder"):
        pack(tmp_path / "none", tmp_path / "tar", keyfile)


PSNODE = """#!/bin/bash
pwd >>"$HOME/where"
printf '%s\\n' "$@" >"$HOME/words"
[[ ! -f slow ]] || for _ in {1..600}; do sleep 0.1; done
"""


def test_the_job_runs_in_the_code_that_all_nodes_have_got(nodes: Any, tmp_path: Path) -> None:
    program = nodes.home("master") / "psnode/.venv/bin/psnode"
    grown(program.parent, {"psnode": PSNODE})
    program.chmod(0o755)
    code = {name: nodes.home(name) / "psnode" / "code" for name in ("master", "worker-0", "worker-1")}
    tree = grown(tmp_path / "tree", {"own.py": "1", "old/x.py": "1", "was a file": "1", "tool.sh": "1"})
    (tree / "tool.sh").chmod(0o755)
    shown = nodes.ec2("run", "--sync", tree, "--dry-run", "--", "own.py")
    assert shown.out.count("would unpack ") == 3
    assert not code["master"].exists()
    done = nodes.ec2("run", "--sync", tree, "--", "own.py", "--lr", "1")
    assert done.code == 0, done.err
    words = (nodes.home("master") / "words").read_text().split()
    assert words[:5] == ["launch", "-n", "2", "--hostfile", "../hosts_address"]
    assert words[-3:] == ["own.py", "--lr", "1"]
    assert (nodes.home("master") / "where").read_text() == f"{code['master']}\n"
    # files of the job stay, files deleted here are deleted on nodes, and a file may become a folder or the reverse
    grown(code["master"], {"runs/first/metrics.jsonl": "1"})
    for name in ("old/x.py", "was a file"):
        (tree / name).unlink()
    (tree / "old").rmdir()
    grown(tree, {"old": "a file now", "was a file/x": "2", "own.py": "2", "slow": ""})
    assert nodes.ec2("run", "--detach", "--sync", tree, "--", "own.py").code == 0
    for name, folder in code.items():
        there = nodes.tree(folder)
        assert there.pop("runs/first/metrics.jsonl", None) == (b"1" if name == "master" else None)
        assert there == nodes.tree(tree)
        assert (folder / "tool.sh").stat().st_mode & 0o111
    # the code of a running job is not changed
    grown(tree, {"own.py": "3"})
    done = nodes.ec2("run", "--sync", tree, "--", "own.py")
    assert done.code == 2
    assert "a job runs already" in done.err
    assert {(folder / "own.py").read_text() for folder in code.values()} == {"2"}
    nodes.ec2("stop")
    nodes.wait_for((nodes.home("master") / "psnode/jobs/last/code").exists)
