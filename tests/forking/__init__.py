"""Processes of tests that are forked from a server which has already imported torch, Numba and psnode.

Imports take five sixths of a rank's processor time when its job trains for three steps. `FORKING.python()` returns the path
of an executable that takes a command line as Python does (client.py). The client asks a server (server.py; one per process of
tests) for a fork with the client's arguments, environment, folder and files, and stays as the fork's stand-in: it forwards
signals, ends as the fork ends, and the fork is killed if the client is. The server refuses if the fork would differ from a
new interpreter, for example because of a variable that is read during imports, limits, cores, namespaces, or another psnode
on the path. The client then becomes an ordinary interpreter.

The fork's process id is not that of the client. A test that reads a process's /proc or looks at its parents must find the
fork by `fork_of`, or start `sys.executable` instead. A fork has most modules of psnode already, so that a missing or circular
import of theirs shows only in tests that start `sys.executable`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Forking:
    """Starts the server when the first process is requested. `variables`: variables of the server's environment that differ
    from those of this process; only processes with equal variables are forked.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = variables or {}
        self._server: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def python(self) -> str:
        """Return the path of the executable, and start the server at the first call."""
        if self._server is None:
            self._folder = Path(tempfile.mkdtemp(prefix="forks-"))  # short, since the socket's path is limited
            self._start()
        return str(self._folder / "python")

    def _start(self) -> None:
        here = Path(__file__).parent
        client = self._folder / "python"
        client.write_text(f"#!{sys.executable} -IS\n{(here / 'client.py').read_text(encoding='utf-8')}", encoding="utf-8")
        client.chmod(0o755)
        libraries = os.pathsep.join((*filter(None, [os.environ.get("LD_LIBRARY_PATH")]), f"{sys.prefix}/lib"))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": libraries}
        environment |= self._variables
        self._server = subprocess.Popen(
            [sys.executable, "-c", "from tests.forking.server import main; main()"],
            env={name: value for name, value in environment.items() if not name.startswith("PSNODE_")},
            cwd=self._folder,
            stdin=subprocess.PIPE,  # the server ends when this pipe is closed
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the forks through their clients
        )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the server of forks has ended with {self._server.wait()}")

    def launching(self) -> tuple[str, dict[str, str]]:
        """Return the executable file, and environment variables that make the ranks of a `psnode launch` forks too."""
        python, beside = self.python(), str(Path(sys.executable).parent)
        return python, {"FORKING_RANKS": python, "PATH": os.pathsep.join((beside, os.environ.get("PATH", os.defpath)))}

    def processor_time(self) -> float:
        """Return the seconds of processor time used by the server and its ended forks."""
        if self._server is None:
            return 0.0
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()
            return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def close(self) -> None:
        """Stop the server and kill every fork."""
        if self._server is not None:
            self._server.communicate()
            self._server = None
            shutil.rmtree(self._folder)


def fork_of(pid: int) -> int:
    """Return the process id of a client's fork. Return `pid` itself if that process is not a client."""
    with contextlib.suppress(OSError):
        word, _, fork = Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip().partition("-")
        if word == "fork":
            return int(fork)
    return pid


def descendants(pid: int) -> list[int]:
    """Return the process ids of all children of a process, of their children, and so on."""
    found: list[int] = []
    for file in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, file.read_text().split()):
                found += [child, *descendants(child)]
    return found


FORKING = Forking()  # the instance of this process of tests; tests/conftest.py closes it
