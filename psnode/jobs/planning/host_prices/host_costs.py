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
from typing import NamedTuple

import numpy as np

from psnode.config.cores import usable_cores

_BYTES = 32 << 20
_ROUNDS = 5
_MOST_NEIGHBOURS = 7
_SETTLING = 0.2  # seconds until a new process works at its usual rate
_FEWEST = 3  # calls whose processor time is measured


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


class CoreRates(NamedTuple):
    """Rates of work on cores that are shared.

    `crowded`: the rate of work while the other cores do the same work, which shares caches and memory with it, relative to the
    rate when they are idle. `turns`: the rate of a core that switches between this work and the same work of another process,
    relative to that of a core with this work alone. Each process finds caches that the other one has overwritten.
    """

    crowded: float = 1.0
    turns: float = 1.0


def core_rates(work: Callable[[], object], seconds: float) -> CoreRates:
    """Return the rates of `work`, which must not use other threads. `seconds`: the least duration of each measurement.

    `crowded` is measured with all other cores, but at most _MOST_NEIGHBOURS; it is 1 on a host with one core. `turns` is
    measured on one core; it is 1 if this process may not choose a core. Both are ratios of processor times, which leave out
    the time in which other programs have the core.
    """
    return CoreRates(_crowding(work, seconds), _taking_turns(work, seconds))


def _crowding(work: Callable[[], object], seconds: float) -> float:
    neighbours = min(usable_cores() - 1, _MOST_NEIGHBOURS)
    if neighbours < 1:
        return 1.0
    alone = _processor_seconds(work, seconds)
    with _neighbours(work, neighbours):
        time.sleep(_SETTLING)
        together = _processor_seconds(work, seconds)
    return min(1.0, alone / together)


def _taking_turns(work: Callable[[], object], seconds: float) -> float:
    """Return the processor time of calls of `work` on a core, relative to that on the same core with a second process."""
    try:
        usual = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(usual)})
    except (AttributeError, OSError):
        return 1.0
    try:
        alone = _processor_seconds(work, seconds)
        with _neighbours(work, 1):
            time.sleep(_SETTLING)
            switching = _processor_seconds(work, seconds)
    finally:
        os.sched_setaffinity(0, usual)
    return min(1.0, alone / switching)


def _processor_seconds(work: Callable[[], object], seconds: float) -> float:
    """Return the mean processor time of a call of `work`, from at least _FEWEST calls that take at least `seconds` seconds."""
    work()
    begin, used, calls = time.perf_counter(), time.thread_time(), 0
    while calls < _FEWEST or time.perf_counter() - begin < seconds:
        work()
        calls += 1
    return (time.thread_time() - used) / calls


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
