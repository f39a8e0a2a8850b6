"""The queue on which a transport's threads wait."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from psnode.transport.mailbox import Mailbox


def test_items_come_out_in_the_order_in_which_they_were_put() -> None:
    mailbox: Mailbox[int] = Mailbox()
    assert mailbox.empty()
    for item in range(5):
        mailbox.put(item)
    assert not mailbox.empty()
    assert [mailbox.get_nowait(), mailbox.get(10)] == [0, 1]
    assert [mailbox.get(0) for _ in range(3)] == [2, 3, 4]
    with pytest.raises(queue.Empty):
        mailbox.get_nowait()


def test_a_wait_for_nothing_ends_when_it_should() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    assert mailbox.get_nowait() == 1  # the item that woke the reader is taken: the next wait must not see it again
    begin = time.monotonic()
    with pytest.raises(queue.Empty):
        mailbox.get(0.2)
    assert time.monotonic() - begin >= 0.2


def test_nothing_is_lost_or_told_twice_while_many_threads_put() -> None:
    mailbox: Mailbox[tuple[int, int]] = Mailbox()

    def put(writer: int) -> None:
        for index in range(2000):
            mailbox.put((writer, index))

    writers = [threading.Thread(target=put, args=(writer,)) for writer in range(4)]
    for writer in writers:
        writer.start()
    got = [mailbox.get(60) for _ in range(8000)]
    for writer in writers:
        writer.join()
    assert mailbox.empty()
    for number in range(4):
        assert [index for writer, index in got if writer == number] == list(range(2000))


def test_a_wait_ends_though_a_handler_outlasted_it() -> None:
    """Check that a wait ends although a handler takes longer than the wait; queue.SimpleQueue would block for ever."""
    program = """
import queue, signal, time
from psnode.transport.mailbox import Mailbox
mailbox = Mailbox()
signal.signal(signal.SIGALRM, lambda *_: time.sleep(1))
signal.setitimer(signal.ITIMER_REAL, 0.3)
try:
    mailbox.get(0.5)
except queue.Empty:
    print("ended")
"""
    root = Path(__file__).resolve().parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "ended\n", ran.stderr
