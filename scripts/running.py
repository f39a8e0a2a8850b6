"""A job under `psnode launch` for scripts that disturb it: its processes, its steps, and ways to disturb them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TURN = 0.1  # seconds of one stop and the following run of a slowed process


class Job:
    """A job under `psnode launch` in a separate process.

    Its command is `psnode launch -n WORKERS LAUNCH... -- train FLAGS... --train-dir TRAIN_DIR`. The output goes to a .log file
    next to TRAIN_DIR.
    """

    def __init__(self, train_dir: Path, workers: int, flags: Sequence[str], launch: Sequence[str] = ()) -> None:
        self.train_dir = train_dir
        self.log = train_dir.with_suffix(".log")
        line = [sys.executable, "-m", "psnode", "launch", "-n", str(workers), *launch, "--", "train", *flags]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*line, "--train-dir", str(train_dir)], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def ranks(self) -> dict[int, int]:
        """Return the process id of each rank that runs now, including ranks on emulated hosts."""
        found: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and str(self.train_dir).encode() in (entry / "cmdline").read_bytes():
                    for word in (entry / "environ").read_bytes().split(b"\0"):
                        if word.startswith(b"OMPI_COMM_WORLD_RANK="):
                            found[int(word.split(b"=")[1])] = int(entry.name)
        return found

    @property
    def running(self) -> bool:
        """True as long as the launcher runs."""
        return self.process.poll() is None

    def last(self) -> dict[str, Any]:
        """Return the newest step record, or {"step": 0} if there is no record yet."""
        with suppress(OSError, IndexError), (self.train_dir / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            return dict(json.loads(file.read().rpartition(b"\n")[0].splitlines()[-1]))
        return {"step": 0}

    @property
    def step(self) -> int:
        """The number of finished steps."""
        return int(self.last()["step"])

    def wait_for(self, step: int) -> None:
        """Block until `step` steps are finished. Raises SystemExit with the log if the job ends earlier."""
        while self.step < step:
            if not self.running:
                raise SystemExit(self.log.read_text())
            time.sleep(0.02)

    def rate(self, seconds: float) -> float:
        """Return the number of finished steps per second, measured over `seconds`."""
        before, begin = self.step, time.monotonic()
        time.sleep(seconds)
        return (self.step - before) / (time.monotonic() - begin)

    def events(self) -> list[dict[str, Any]]:
        """Return the events that the job has recorded."""
        file = self.train_dir / "events.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def stop(self) -> int:
        """Ask the job to stop with TERM, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def send(pid: int, number: int) -> None:
    """Send signal `number` to process `pid`. Do nothing if the process has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def slowed(pid: int, factor: float) -> Iterator[None]:
    """Let process `pid` run for only 1 / `factor` of the time inside the context, by stopping it for the rest of every TURN."""
    end = threading.Event()

    def turns() -> None:
        while not end.is_set():
            send(pid, signal.SIGSTOP)
            time.sleep(TURN * (1 - 1 / factor))
            send(pid, signal.SIGCONT)
            time.sleep(TURN / factor)

    thread = threading.Thread(target=turns)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def host_port(rank: int) -> str | None:
    """Return the name of the switch port to which the emulated host of `rank` is connected; None without emulated hosts.

    Hosts are emulated if the script runs under scripts/netlab.sh with one rank per host.
    """
    port = f"port{rank + 1}"
    return port if Path(f"/sys/class/net/{port}").exists() or _link(port, "show") else None


def cut(port: str) -> None:
    """Take the link at `port` down."""
    _link(port, "set", "down")


def mend(port: str) -> None:
    """Bring the link at `port` up again."""
    _link(port, "set", "up")


def _link(port: str, verb: str, *what: str) -> bool:
    line = ["ip", "link", verb, *(["dev"] if verb == "show" else []), port, *what]
    return subprocess.run(line, capture_output=True, check=False).returncode == 0
