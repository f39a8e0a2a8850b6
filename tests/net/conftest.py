"""The fixture `netlab`: psnode/bench/contest/netlab.sh, on systems that can create network namespaces and shape their traffic."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "psnode" / "bench" / "contest" / "netlab.sh"
HEADERS = 66  # bytes of a packet beside its payload: Ethernet 14, IPv4 20, TCP 20, TCP timestamps 12


class Finished(NamedTuple):
    """End of the script: exit code and output."""

    code: int
    out: str
    err: str


_SET_PARENT_DEATH_SIGNAL = 1  # sys/prctl.h


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


class Netlab:
    """Starts netlab.sh with this Python, its mpirun, and one thread per process."""

    def start(self, *args: object) -> subprocess.Popen[str]:
        """Start the script and return at once. If this process is killed, the script and its hosts are killed too."""
        env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PSNODE_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PSNODE_DEADLINE": "60",  # so that a delay of five seconds on a busy machine suspends no worker
        }
        return subprocess.Popen(
            [SCRIPT, *map(str, args)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_die_with_parent,
        )

    def __call__(self, *args: object, timeout: float = 300.0) -> Finished:
        """Run the script until it ends; kill it and fail after `timeout` seconds."""
        process = self.start(*args)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()  # the script's hosts end with it
            out, err = process.communicate()
            pytest.fail(f"no end within {timeout:g} s\n{out}\n{err}")
        return Finished(process.returncode, out, err)

    def namespaces(self, pid: int) -> list[str]:
        """Return the names of the network namespaces that process `pid` created for the lab."""
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        return [line.split()[0] for line in listed.splitlines() if line.startswith(f"netlab-{pid}-")]

    def payload(self, counters: Path) -> list[int]:
        """Return the bytes that each host sent while the command ran, without packet headers, from the file `counters`."""
        hosts: list[dict[str, Any]] = json.loads(counters.read_text())["hosts"]
        spans = [(host["before"], host["after"]) for host in hosts]
        return [
            after["tx_bytes"] - before["tx_bytes"] - HEADERS * (after["tx_packets"] - before["tx_packets"])
            for before, after in spans
        ]


def obstacle() -> str | None:
    """Return the reason why this system cannot emulate hosts, or None; the script is not used, so it cannot excuse its own
    failures.
    """
    if os.geteuid() != 0:
        return "emulated hosts need root"
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"emulated hosts need {missing[0]}: install iproute2"
    name = f"probe-{os.getpid()}"
    if _fails("ip", "netns", "add", name):
        return "this system makes no network namespaces"
    try:
        shaper = ["root", "tbf", "rate", "1mbit", "burst", "256kb", "latency", "400ms"]
        if _fails("tc", "-n", name, "qdisc", "add", "dev", "lo", *shaper):
            return "this kernel does not shape with tbf"
    finally:
        _fails("ip", "netns", "delete", name)
    return None


def _fails(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode != 0


@pytest.fixture(scope="session")
def netlab() -> Netlab:
    """Return a starter of emulated hosts; skip the test where hosts cannot be emulated."""
    if reason := obstacle():
        pytest.skip(reason)
    return Netlab()
