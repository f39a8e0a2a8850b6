"""Supervision of mpirun by the launcher.

After a request to stop, the job has time to write a checkpoint. Then its processes are killed, so that no process is left.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from psnode.config.parent import follow_parent
from psnode.jobs.forwarding import Forwarding
from psnode.jobs.sweeping import members, runs

_POLL_SECONDS = 0.1
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_MAY_BE_IGNORED = (signal.SIGINT, signal.SIGHUP)  # ignored under nohup, or if a shell starts the program in the background
_LOOK_SECONDS = 1.0
# After TERM, mpirun kills the ranks within half a second. TERM is therefore sent late, after the time for their checkpoint.
_TERM_BEFORE_KILL = 1.5
_PROC = Path("/proc")
_RANK_VARIABLES = (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"PMIX_RANK")


class Ended(NamedTuple):
    """The result of a supervised job.

    It has the job's exit code, the first signal that `asked` the job to stop (0: no signal), and the beginning of its
    standard error.
    """

    code: int
    asked: int
    heard: str = ""


def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    kill_after: float,
    begun: Callable[[int], None] = lambda session: None,
    asked: Callable[[int], None] = lambda number: None,
) -> Ended:
    """Run `command` (an mpirun) in its own session until all of its processes have ended.

    * After TERM, INT, USR1 or HUP to this process, mpirun gets USR1 and passes it to the ranks. Shortly before `kill_after`
      seconds are over, mpirun gets TERM, and then the whole session gets KILL. A second INT acts as an immediate TERM.
    * If rank 0 has ended on this host and mpirun does not end within `kill_after` seconds, the remaining ranks are killed.
      After another `kill_after` seconds mpirun itself is killed.
    * If mpirun is killed, the ranks have `kill_after` seconds to end.
    * If this process is killed, mpirun gets USR1.

    If this process already ignores INT or HUP (under nohup, or in a shell's background), the signal stays ignored. `begun`
    is called with the id of the session when mpirun has started. `asked` is called with the signal that asked for a stop,
    before each of the signals that follow this request.
    """
    escalation = Escalation(kill_after)
    with _stop_signals(escalation), Forwarding() as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output.output,
            stderr=output.error,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=partial(follow_parent, signal.SIGUSR1),
        )
        output.begin()
        begun(process.pid)
        watch = RankZero(process.pid)
        try:
            while process.poll() is None:
                for number in escalation.due(time.monotonic()):
                    asked(escalation.asked)
                    _kill(members(process.pid)) if number == signal.SIGKILL else process.send_signal(number)
                gone = watch.gone_for(time.monotonic())
                if gone > 2 * kill_after:
                    _kill(members(process.pid))
                elif gone > kill_after:
                    _kill([pid for pid in members(process.pid) if pid != process.pid])
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL_SECONDS)
            if process.returncode < 0:  # mpirun was killed: its ranks got TERM, and write a checkpoint
                _await_end(process.pid, time.monotonic() + kill_after)
        finally:
            _kill(members(process.pid))
            process.wait()
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return Ended(code, escalation.asked, output.heard)


class Escalation:
    """The schedule of the signals that follow a request to stop. Times are those of time.monotonic()."""

    def __init__(self, kill_after: float) -> None:
        self._term_after = max(kill_after / 2, kill_after - _TERM_BEFORE_KILL)
        self._plan = [(signal.SIGUSR1, 0.0), (signal.SIGTERM, self._term_after), (signal.SIGKILL, kill_after)]
        self._since: float | None = None
        self._interrupts = 0
        self.asked = 0  # the first signal that asked for a stop; 0: no signal

    def request(self, number: int, now: float) -> None:
        """Record a request to stop by signal `number`."""
        if self._since is None:
            self._since, self.asked = now, number
        self._interrupts += number == signal.SIGINT
        if self._interrupts == 2:
            self._since = min(self._since, now - self._term_after)

    def due(self, now: float) -> list[signal.Signals]:
        """Return the signals that are due at time `now`. Each signal is returned only once."""
        signals = []
        while self._since is not None and self._plan and now - self._since >= self._plan[0][1]:
            signals.append(self._plan.pop(0)[0])
        return signals


class RankZero:
    """An observer of the end of rank 0, if rank 0 runs on this host."""

    def __init__(self, session: int) -> None:
        self._session = session
        self._pid: int | None = None
        self._looked = -math.inf
        self._ended: float | None = None

    def gone_for(self, now: float) -> float:
        """Return the seconds since rank 0 was found to have ended; 0 if it still runs, or if it was never found on this host."""
        if self._pid is None and now - self._looked > _LOOK_SECONDS:
            self._looked = now
            self._pid = next((pid for pid in members(self._session) if _is_rank_zero(pid)), None)
        if self._pid is None or (self._ended is None and runs(self._pid)):
            return 0.0
        if self._ended is None:
            self._ended = now
        return now - self._ended


def _is_rank_zero(pid: int) -> bool:
    """Return True if the process is rank 0: if its environment states rank 0, and that of its parent does not.

    The second condition excludes the children of rank 0, which inherit its environment.
    """
    return _says_rank_zero(pid) and not _says_rank_zero(_parent(pid))


def _says_rank_zero(pid: int) -> bool:
    with contextlib.suppress(OSError):
        words = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
        return any(name + b"=0" in words for name in _RANK_VARIABLES)
    return False


def _await_end(session: int, end: float) -> None:
    while any(runs(pid) for pid in members(session)) and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)


def _parent(pid: int) -> int:
    """Return the id of the parent process, or 0 if process `pid` does not exist."""
    with contextlib.suppress(OSError):
        return int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _stop_signals(escalation: Escalation) -> Iterator[None]:
    """Turn stop signals into requests of `escalation` inside the context, except signals that the process ignores.

    Outside the main thread, which alone can set handlers of signals, this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda caught, frame: escalation.request(caught, time.monotonic()))
        for number in _STOP_SIGNALS
        if number not in _MAY_BE_IGNORED or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
