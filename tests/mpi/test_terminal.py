"""A job watched on a real terminal shows progress while it runs: bars, lines, and drawings of a user's program."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

pytest.importorskip("mpi4py")
pytestmark = pytest.mark.skipif(
    not Path(sys.executable).with_name("mpirun").exists() and shutil.which("mpirun") is None, reason="no mpirun"
)

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ["--network", "FC", "--scheme", "dense", "--batch-size", "8", "--threads", "1", "--log-interval", "5"]
ENDLESS = [*TRAIN, "--max-steps", "1000000", "--no-tensorboard"]
PROGRAM = """
import sys
import torch
import psnode

points = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = torch.utils.data.DataLoader(points, batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
with psnode.session(model, train_dir=sys.argv[1], scheme="dense", lr=1e-3, max_steps=1000000, log_interval=5) as s:
    for number, (x, y) in enumerate(s.batches(loader)):
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        s.step(loss)
        print(f"\\rown bar {number} ", end="", file=sys.stderr, flush=True)
"""


class Terminal:
    """A process on its own terminal, 100 columns wide, and the bytes that the terminal received."""

    def __init__(self, command: Sequence[str | Path], folder: Path) -> None:
        self._end, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        env = {**os.environ, **allowed, "PYTHONPATH": str(ROOT), "TERM": "xterm", "PRTE_MCA_prte_local_tmpdir_base": str(folder)}
        env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "PYTHONUNBUFFERED")}
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=end, stderr=end, env=env, start_new_session=True
        )
        os.close(end)
        self.seen = b""

    def read(self) -> bool:
        """Read the bytes that have arrived, after a short wait; return False once no more can arrive."""
        if not select.select([self._end], [], [], 0.2)[0]:
            return True
        try:
            found = os.read(self._end, 1 << 16)
        except OSError:
            return False
        self.seen += found
        return bool(found)

    @property
    def text(self) -> str:
        """Return all text, without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen.decode(errors="replace"))

    def watch(self, *patterns: str) -> None:
        """Block until each pattern has matched three different texts while the process runs."""
        end = time.monotonic() + 240
        while any(len(set(re.findall(pattern, self.text))) < 3 for pattern in patterns):
            if not self.read() or time.monotonic() > end:
                pytest.fail(f"the terminal stood still (exit code {self.process.poll()}): {self.text[-2000:]!r}")

    def stop(self, number: int) -> int:
        """Send the process a signal, and return its exit code."""
        os.killpg(self.process.pid, number)  # as Ctrl-C does
        while self.read():
            pass
        return self.process.wait(120)

    def close(self) -> None:
        """Kill all processes that still run."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(entry.name)) == self.process.pid or self._started(entry):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                pass
        self.process.wait(60)
        os.close(self._end)

    def _started(self, entry: Path) -> bool:
        return entry.joinpath("stat").read_text().rpartition(")")[2].split()[1] == str(self.process.pid)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Yield a list of terminals, which are closed after the test."""
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


@pytest.mark.long
def test_launch_draws_a_bar_as_wide_as_the_terminal(tmp_path: Path, terminals: list[Terminal]) -> None:
    command = [sys.executable, "-m", "psnode", "launch", "-n", "1", "--", "train", *ENDLESS, "--train-dir", tmp_path / "run"]
    terminals.append(Terminal(command, tmp_path))
    terminals[0].watch(r"step +(\d+)/1000000 ", r"loss (\d+\.\d+)")
    assert terminals[0].stop(signal.SIGTERM) == 75
    assert b"\x1b[?25h" in terminals[0].seen.rpartition(b"\x1b[?25l")[2]  # the cursor is visible again
    drawn = max(len(line) for line in terminals[0].text.splitlines() if "ms/step" in line)
    assert 80 < drawn <= 100


@pytest.mark.long
def test_launch_shows_at_once_what_a_program_of_ones_own_draws(tmp_path: Path, terminals: list[Terminal]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    terminals.append(Terminal([sys.executable, "-m", "psnode", "launch", "-n", "1", "--", program, tmp_path / "run"], tmp_path))
    terminals[0].watch(r"step +(\d+)/1000000 ", r"own bar (\d+) ")
    assert terminals[0].stop(signal.SIGTERM) == 75


def test_mpirun_of_a_session_prints_whole_lines(tmp_path: Path, terminals: list[Terminal]) -> None:
    from psnode.jobs.launch import find_mpirun

    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    mpirun = [find_mpirun(), "-n", "2", "--oversubscribe", "--bind-to", "none"]
    terminals.append(Terminal([*mpirun, sys.executable, program, tmp_path / "run"], tmp_path))
    terminals[0].watch(r"step (\d+)/1000000  epoch .*\r\n")
    assert terminals[0].stop(signal.SIGUSR1) == 75


@pytest.mark.long
def test_tune_shows_how_far_a_trial_is(tmp_path: Path, terminals: list[Terminal]) -> None:
    words = ["tune", "--vary", "lr=0.01,0.02", "--steps", "1000000", "--metric", "train_loss", "--output", tmp_path / "tune"]
    terminals.append(Terminal([sys.executable, "-m", "psnode", *words, "--", "--local", "1", *TRAIN], tmp_path))
    terminals[0].watch(r"trial 1 of 2.*?step +(\d+)/1000000")
    assert terminals[0].stop(signal.SIGINT) == 130
