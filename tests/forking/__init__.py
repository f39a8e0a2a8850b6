"""Processes of tests that are forked from one which has imported torch, Numba and psnode already.

Five sixths of a rank's processor time are imports when its job trains for three steps. `FORKING.python()` is an executable
file that takes a command line as Python does (client.py). It asks a server (server.py), one for every process of tests, for a
fork with its own arguments, environment, folder and files, and stays as its stand-in: signals pass through it, it ends as the
fork ends, and the fork is killed with it. The server refuses a process that would differ from one with an interpreter of its
own: by a variable that is read during imports, by limits, cores or namespaces, by another psnode. Such a process gets its own
interpreter.

The fork's process id is not that of the client: a test that stops a process (SIGSTOP), reads its /proc or compares its id with
one it wrote down starts `sys.executable`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "FORKING_SERVER"  # names the server's socket


class Forking:
    """Starts the server when the first process is wanted."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def python(self) -> str:
        """The executable file."""
        if self._server is None:
            self._folder = Path(tempfile.mkdtemp(prefix="forks-"))  # a short path: the socket's is bounded
            self._start()
        return str(self._folder / "python")

    def _start(self) -> None:
        here = Path(__file__).parent
        client = self._folder / "python"
        client.write_text(f"#!{sys.executable} -IS\n{(here / 'client.py').read_text(encoding='utf-8')}", encoding="utf-8")
        client.chmod(0o755)
        os.environ[VARIABLE] = str(self._folder / "socket")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LD_LIBRARY_PATH": f"{sys.prefix}/lib"}
        self._server = subprocess.Popen(
            [sys.executable, "-c", "from tests.forking.server import main; main()"],
            env={name: value for name, value in environment.items() if not name.startswith("PSNODE_")},
            cwd=self._folder,
            stdin=subprocess.PIPE,  # its end is the server's
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the server of forks has ended with {self._server.wait()}")

    def processor_time(self) -> float:
        """Seconds that the server and the forks that have ended took."""
        if self._server is None:
            return 0.0
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{self._server.pid}/stat").read_text().rpartition(")")[2].split()
            return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return 0.0

    def close(self) -> None:
        """End the server and every fork."""
        if self._server is not None:
            self._server.communicate()
            os.environ.pop(VARIABLE, None)
            self._server = None
            shutil.rmtree(self._folder)


FORKING = Forking()  # of this process of tests, which closes it (tests/conftest.py)
