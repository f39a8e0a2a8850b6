"""Costs of tests: the processes that command lines start, and the processor time that is counted for each test's file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.costs import processes


@pytest.mark.parametrize(
    ("command", "started"),
    [
        (["ls", "-n", "3"], 0),
        ([sys.executable, "-c", "pass"], 1),
        (["mpirun", "--oversubscribe", "-n", "3", sys.executable, "-m", "psnode", "train"], 3),
        (["mpirun", "-n", "1", "python3", "a.py", ":", "-n", "2", "python3", "b.py"], 3),
        ([sys.executable, "-m", "psnode", "launch", "-n", "2", "--", "train"], 4),
        ([b"python3", Path("a.py")], 1),
    ],
)
def test_interpreters_that_a_command_starts(command: list[str], started: int) -> None:
    assert processes(command) == started


def test_time_in_a_child_is_counted_for_the_file_of_its_test(tmp_path: Path) -> None:
    """Check the plugin by running pytest on a test whose child process uses half a second of processor time."""
    burning = "import time\nwhile time.process_time() < 0.5:\n    pass\n"
    (tmp_path / "test_it.py").write_text(
        f"import subprocess, sys\ndef test_it():\n    subprocess.run([sys.executable, '-c', {burning!r}], check=True)\n"
    )
    (tmp_path / "conftest.py").write_text(
        "from tests.costs import Costs\ndef pytest_configure(config):\n    config.pluginmanager.register(Costs())\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, env=None, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if "started  " in line]
    seconds, _, clock, _, count, _, file = line.split()
    assert min(float(seconds), float(clock)) >= 0.5
    assert (int(count), Path(file).name) == (1, "test_it.py")
