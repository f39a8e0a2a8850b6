"""A clock for deadlines counts only the time in which its process could receive messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from psnode.transport.clock import Clock


class Seconds:
    """A source of time that the test moves."""

    value = 100.0

    def __call__(self) -> float:
        return self.value


def waited(clock: Clock, seconds: Seconds, until: float, stall: float = 0.0) -> float:
    """Wait once without an event, `stall` longer than asked, and return the seconds that the wait was given."""
    with clock.listening(until) as given:
        seconds.value += given + stall
    return given


def test_waits_that_end_in_time_count_in_full() -> None:
    seconds = Seconds()
    clock = Clock(seconds)
    end = clock.now() + 3.3
    given = []
    while clock.now() < end:
        given.append(waited(clock, seconds, end, stall=0.01))
    assert given[:3] == [1.0, 1.0, 1.0]
    assert seconds.value - 100 == pytest.approx(3.3, abs=0.25)


def test_a_stall_in_a_wait_does_not_count() -> None:
    seconds = Seconds()
    clock = Clock(seconds)
    begin = clock.now()
    waited(clock, seconds, begin + 60, stall=500)
    assert clock.now() - begin == pytest.approx(1.0)


def test_long_work_between_waits_does_not_count_and_short_work_does() -> None:
    seconds = Seconds()
    clock = Clock(seconds)
    begin = clock.now()
    seconds.value += 0.9
    waited(clock, seconds, begin + 60)
    assert clock.now() - begin == pytest.approx(1.9)
    seconds.value += 300
    waited(clock, seconds, begin + 60)
    assert clock.now() - begin == pytest.approx(2.9)


def test_behind_the_deadline_what_came_in_is_still_waited_for() -> None:
    seconds = Seconds()
    clock = Clock(seconds)
    assert waited(clock, seconds, clock.now() - 10) == 0.2


def test_a_process_that_was_stopped_does_not_find_its_deadline_over() -> None:
    """Check a process that stops itself with SIGSTOP for longer than its deadline, .3 s after its wait began; the deadline
    must not pass.
    """
    program = """
import os, queue, signal, time
from psnode.transport.clock import Clock
from psnode.transport.mailbox import Mailbox
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
inbox, clock, stop_after = Mailbox(), Clock(), 0.3
end = clock.now() + 2
while clock.now() < end:
    with clock.listening(end) as seconds:
        if stop_after:
            signal.setitimer(signal.ITIMER_REAL, stop_after)
            stop_after = 0
        try:
            inbox.get(timeout=seconds)
        except queue.Empty:
            pass
print(time.monotonic())
"""
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(root)}, stdout=subprocess.PIPE, text=True
    )
    try:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), status
        time.sleep(3)
        continued = time.monotonic()
        os.kill(process.pid, signal.SIGCONT)
        ended = float(process.communicate(timeout=30)[0])
    finally:
        process.kill()
    assert ended - continued >= 0.8  # of the 2 s, only one slice of a second was counted
