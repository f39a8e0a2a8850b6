"""A conversation with a host: questions and answers, over ssh or with a process on this host."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError, PsnodeError
from psnode.jobs.hosts.hostfile import Host
from psnode.protocol.messages import plain

_AGENT = Path(__file__).with_name("agent.py")
_TRIPS = 5


class SilentHostError(PsnodeError):
    """Error for a host that does not answer. Its text is the reason, such as the last error that the host or ssh printed."""


class Conversation:
    """A connection to an agent (psnode.jobs.hosts.agent) on one host. The agent ends when the connection is closed.

    Every answer must arrive within `deadline` seconds.
    """

    def __init__(self, host: Host, deadline: float) -> None:
        self.host = host
        self._deadline = deadline
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - a process that outlives ssh might keep a pipe open
        try:
            self._process = subprocess.Popen(
                _line(host, deadline),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                errors="replace",
            )
        except OSError as error:
            self._errors.close()
            raise ConfigurationError(f"ssh cannot be run ({error.strerror}): install the OpenSSH client") from None

    @property
    def goes_on(self) -> bool:
        """True while the host may still answer."""
        return self._process.poll() is None

    def ask(self, question: str, **named: Any) -> dict[str, Any]:
        """Return the answer to a question of psnode.jobs.hosts.agent. Raises SilentHostError if no answer arrives."""
        late = threading.Event()
        timer = threading.Timer(self._deadline, self._give_up, [late])
        timer.start()
        try:
            with contextlib.suppress(OSError, EOFError):
                return self._answer(to_json({"ask": question, **named}))
            code = self._process.wait()
        finally:
            timer.cancel()
        if late.is_set():
            raise SilentHostError(f"did not answer within {self._deadline:g} s")
        self._errors.seek(0)
        said = [" ".join(line.split()) for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        raise SilentHostError(plain(said[-1]) if said else f"ended with {code}")

    def _give_up(self, late: threading.Event) -> None:
        late.set()
        self._process.kill()

    def _answer(self, question: str) -> dict[str, Any]:
        """Send the question and return the answer. Raises OSError or EOFError if no answer arrives."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(question + "\n")
        process.stdin.flush()
        for line in process.stdout:
            with contextlib.suppress(ValueError):  # skip output of a login shell
                if isinstance(found := json.loads(line), dict):
                    return {key: plain(value) if isinstance(value, str) else value for key, value in found.items()}
        raise EOFError

    def clock(self) -> float:
        """Return the seconds by which the host's clock is ahead of this machine's clock.

        The host's time is asked for a few times, and the shortest round trip is used.
        """
        found = []
        for _ in range(_TRIPS):
            before = time.time()
            there = float(self.ask("time")["time"])
            after = time.time()
            found.append((after - before, there - (before + after) / 2))
        return min(found)[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def _line(host: Host, deadline: float) -> list[str]:
    """Return the command line that runs the agent on `host`, with the interpreter at the same path as on this machine.

    If `host` is another machine, the command line runs the agent over ssh in batch mode.
    """
    agent = [sys.executable, "-c", _AGENT.read_text()]
    if host.is_here:
        return agent
    options = {"BatchMode": "yes", "ConnectTimeout": str(max(1, math.ceil(deadline))), "LogLevel": "ERROR"}
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-T", *words, "--", host.name, shlex.join(agent)]
