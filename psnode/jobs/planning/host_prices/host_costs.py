"""Measurement of costs of this host that do not depend on the model: bytes through TCP, additions, and crowded cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from psnode.config.cores import usable_cores

_BYTES = 32 << 20
_ROUNDS = 5
_MOST_NEIGHBOURS = 7
_SETTLING = 0.2  # seconds until a new process works at its usual rate


def socket_costs() -> tuple[float, float]:
    """Return the processor seconds per byte sent, and per byte received, through TCP on the loopback interface."""
    listener = socket.create_server(("127.0.0.1", 0))
    content = bytes(_BYTES)
    spent: list[float] = []

    def receive() -> None:
        connection, _ = listener.accept()
        room = bytearray(1 << 20)
        with connection:
            begin, left = time.thread_time(), len(content)
            while left and (got := connection.recv_into(room)):
                left -= got
            spent.append(time.thread_time() - begin)

    sent, received = [], []
    with listener:
        for _ in range(_ROUNDS):
            thread = threading.Thread(target=receive)
            thread.start()
            with socket.create_connection(listener.getsockname()) as connection:
                begin = time.thread_time()
                connection.sendall(content)
                sent.append(time.thread_time() - begin)
                thread.join()
            received.append(spent.pop())
    return statistics.median(sent) / _BYTES, statistics.median(received) / _BYTES


def add_cost() -> float:
    """Return the seconds that the addition of two float32 arrays takes, per byte of one of the arrays."""
    total, part = np.zeros(_BYTES // 4, np.float32), np.ones(_BYTES // 4, np.float32)
    return median_seconds(lambda: np.add(total, part, out=total)) / _BYTES


def median_seconds(work: Callable[[], object], seconds: float = 0.0, warmup: int = 1) -> float:
    """Return the median of the results of `all_seconds`."""
    return statistics.median(all_seconds(work, seconds, warmup))


def all_seconds(work: Callable[[], object], seconds: float = 0.0, warmup: int = 1) -> list[float]:
    """Return the durations of calls of `work`, after `warmup` calls that do not count.

    At least _ROUNDS calls are measured, and more if these take less than `seconds` seconds together.
    """
    for _ in range(warmup):
        work()
    found = list[float]()
    while len(found) < _ROUNDS or sum(found) < seconds:
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return found


def crowding(work: Callable[[], object], seconds: float) -> float:
    """Return the rate of `work` while other cores repeat it too, relative to its rate when the other cores are idle.

    These are all other cores, but at most _MOST_NEIGHBOURS. `seconds`: the least duration of each of the two measurements.
    The result is 1.0 on a host with one core.
    """
    neighbours = min(usable_cores() - 1, _MOST_NEIGHBOURS)
    if neighbours < 1:
        return 1.0
    alone = median_seconds(work, seconds)
    with _neighbours(work, neighbours):
        time.sleep(_SETTLING)
        together = median_seconds(work, seconds)
    return min(1.0, alone / together)


@contextmanager
def _neighbours(work: Callable[[], object], count: int) -> Iterator[None]:
    """Repeat `work` in `count` forks of this process inside the context. A fork also ends if this process is killed."""
    parent = os.getpid()

    def repeat() -> None:
        while os.getppid() == parent:
            work()
        os._exit(0)

    context = multiprocessing.get_context("fork")  # works for code that is not in a module, and shares the model's memory
    processes = [context.Process(target=repeat, daemon=True) for _ in range(count)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads, which the forks do not use
        for process in processes:
            process.start()
    try:
        yield
    finally:
        for process in processes:
            if process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
            process.join()
