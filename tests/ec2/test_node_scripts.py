"""Scripts on nodes, run concurrently and after a restart: nothing is lost, started twice or ended by mistake."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "tools" / "ec2"
PSNODE = '#!/bin/bash\necho $$ >>"$STARTED"\ntrap "exit 75" TERM\nfor _ in {1..3000}; do sleep 0.1; done\n'


def started(name: str, *words: object, home: Path, **env: str) -> subprocess.Popen[str]:
    line = ["bash", str(SCRIPTS / name), *map(str, words)]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(line, cwd=home, env={**os.environ, "HOME": str(home), **env}, text=True, **pipes)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_many_at_once_lose_no_key(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "psnode").touch()
    (tmp_path / ".ssh" / "authorized_keys").write_text("ssh-ed25519 USER ada@home")  # without a newline at the end
    (tmp_path / ".ssh" / "config").write_text("Host mine\n    User ada\n")
    known = "".join(f"10.0.0.{n} ssh-ed25519 {'A' * 68}\n" for n in range(256))
    for _ in range(3):
        many = [started("trust.sh", "ssh-ed25519 MASTER psnode-nodes", known, "10.0.0.1", home=tmp_path) for _ in range(12)]
        ends = [ended(process) for process in many]
        assert ends == [(0, "", "")] * 12
        keys = (tmp_path / ".ssh" / "authorized_keys").read_text()
        assert keys == "ssh-ed25519 USER ada@home\nrestrict ssh-ed25519 MASTER psnode-nodes\n"
    assert (tmp_path / ".ssh" / "psnode_known_hosts").read_text() == known
    config = (tmp_path / ".ssh" / "config").read_text()
    assert config.count("# psnode: begin\n") == 1
    assert config.endswith("# psnode: end\nHost mine\n    User ada\n")
    names = {path.name for path in (tmp_path / ".ssh").iterdir()}
    assert names == {"psnode", "authorized_keys", "config", "psnode_known_hosts", ".psnode.lock"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Path]:
    """Yield a home with a psnode that runs until it is asked to end; processes started in the home are ended."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "psnode").write_text(PSNODE)
    (tmp_path / "bin" / "psnode").chmod(0o755)
    (tmp_path / "work" / "jobs").mkdir(parents=True)
    yield tmp_path
    for process in jobs(tmp_path):
        if Path("/proc", str(process)).exists():
            os.kill(process, 9)


def jobs(home: Path) -> list[int]:
    return [int(word) for word in (home / "started").read_text().split()] if (home / "started").exists() else []


def run(home: Path) -> subprocess.Popen[str]:
    return started("start_job.sh", "work", "bin", "10.0.0.1", ".", "psnode", "train", home=home, STARTED=str(home / "started"))


def test_of_three_runs_at_once_one_starts(node: Path) -> None:
    for _ in range(3):
        before = len(jobs(node))
        three = [run(node) for _ in range(3)]
        ends = [ended(process) for process in three]
        assert sorted(code for code, _, _ in ends) == [0, 2, 2], ends
        assert all("a job runs already (jobs/2" in err for code, _, err in ends if code == 2)
        wait_for(lambda before=before: len(jobs(node)) > before)  # type: ignore[misc]
        assert len(jobs(node)) == before + 1
        assert ended(started("stop_job.sh", "work", home=node)) == (0, "", "")
        wait_for((node / "work" / "jobs" / "last" / "code").exists)
        assert (node / "work" / "jobs" / "last" / "code").read_text() == "75\n"
        wait_for(lambda: subprocess.run(["flock", "-n", node / "work/jobs/last/lock", "true"]).returncode == 0)


def test_what_a_job_leaves_behind_does_not_hold_its_lock(node: Path) -> None:
    """Check that the next job can start although a process that the ended job started still runs."""
    (node / "bin" / "psnode").write_text('#!/bin/bash\nsetsid sleep 600 >/dev/null 2>&1 &\necho $! >>"$STARTED"\n')
    assert ended(run(node))[0] == 0
    wait_for((node / "work" / "jobs" / "last" / "code").exists)
    [left] = jobs(node)
    assert Path("/proc", str(left)).exists()
    wait_for(lambda: subprocess.run(["flock", "-n", node / "work/jobs/last/lock", "true"]).returncode == 0)
    code, _, err = ended(run(node))
    assert code == 0, err
    wait_for(lambda: len(jobs(node)) == 2)


def test_a_job_whose_supervisor_was_killed_still_holds_its_lock(node: Path) -> None:
    """Check a job whose shell was killed, as when memory runs out: the job continues, keeps other jobs out, and can be
    followed and stopped.
    """
    assert ended(run(node))[0] == 0
    wait_for(lambda: len(jobs(node)) == 1)
    [job] = jobs(node)
    supervisor = int(Path(f"/proc/{job}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(supervisor, 9)
    wait_for(lambda: not alive(supervisor))
    code, _, err = ended(run(node))
    assert (code, len(jobs(node))) == (2, 1), err
    assert "a job runs already" in err
    follower = started("follow_job.sh", "work", "jobs/last", "+1", "follow", home=node)
    assert ended(started("stop_job.sh", "work", home=node)) == (0, "", "")
    wait_for(lambda: not alive(job))
    code, _, err = ended(follower)
    assert code == 1
    assert "the job ended without a code" in err
    wait_for(lambda: subprocess.run(["flock", "-n", node / "work/jobs/last/lock", "true"]).returncode == 0)
    assert ended(run(node))[0] == 0
    wait_for(lambda: len(jobs(node)) == 2)


def alive(process: int) -> bool:
    """Return True until the process has ended; a zombie counts as ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_number_that_another_process_has_now_is_left_alone(node: Path) -> None:
    """Check that stopping a job spares an unrelated process that now has the job's process id, as can happen after a restart of
    the master. The job is reported as ended without an exit code.
    """
    other = subprocess.Popen(["sleep", "600"])
    try:
        last = node / "work" / "jobs" / "20260101T000000-1"
        last.mkdir()
        (last / "pid").write_text(f"{other.pid}\n")
        (last / "log").write_text("step 7\n")
        (last / "lock").touch()
        (last.parent / "last").symlink_to(last.name)
        assert ended(started("stop_job.sh", "work", home=node)) == (0, "", "")
        follower = started("follow_job.sh", "work", "jobs/last", "+1", "follow", home=node)
        code, out, err = ended(follower)
        assert (code, out) == (1, "step 7\n")
        assert "the job ended without a code" in err
        assert ended(run(node))[0] == 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("linked", [False, True])
def test_the_newest_checkpoint_is_found_where_the_work_lies(tmp_path: Path, linked: bool) -> None:
    """Check that the newest checkpoint is found if remote_dir is a folder outside the home directory, or a link to one, as
    for a larger disk of the node.
    """
    home, disk = tmp_path / "home", tmp_path / "disk"
    home.mkdir()
    for run, time_ in ((home / "old", 1000), (disk / "psnode" / "runs" / "first", 2000)):
        (run / "checkpoints" / "step-00000010").mkdir(parents=True)
        (run / "checkpoints" / "latest").write_text("step-00000010\n")
        (run / "config.json").write_text("{}")
        os.utime(run / "checkpoints" / "latest", (time_, time_))
    (home / "work").symlink_to(disk / "psnode")
    where = "work" if linked else str(disk / "psnode")
    code, out, err = ended(started("newest.sh", where, 1, home=home))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"{disk}/psnode/runs/first", "config.json", "checkpoints/latest", "checkpoints/step-00000010"
    ]  # fmt: skip


def wait_for(look: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not look():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)
