"""Repeated timing of calls: of one action with quartiles, or the best times of several actions in turn."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable


def rate(action: Callable[[], object], nbytes: int, seconds: float, least: int = 5, most: int = 100) -> dict[str, float]:
    """Return the speed of `action` in GB/s, for `nbytes` per call: `median`, and the quartiles `low` and `high`.

    After one call to warm up, the action is repeated for about `seconds`, at least `least` and at most `most` times.
    """
    action()
    taken: list[float] = []
    begin = time.perf_counter()
    while len(taken) < least or (len(taken) < most and time.perf_counter() - begin < seconds):
        start = time.perf_counter()
        action()
        taken.append(max(time.perf_counter() - start, 1e-9))
    low, median, high = statistics.quantiles(taken, n=4)
    return {"median": nbytes / median / 1e9, "low": nbytes / high / 1e9, "high": nbytes / low / 1e9}


def best_in_turn(actions: dict[str, Callable[[], object]], repeats: int, seconds: float) -> dict[str, float]:
    """Return for each action the processor time of a call in ns: the least of `repeats` means.

    Each mean is taken over calls of about `seconds`. In each repetition the actions take turns. The least mean is used because
    other programs can only slow an action down.
    """
    calls = {name: max(1, round(1e9 * seconds / max(timed(action, 2), 1.0))) for name, action in actions.items()}
    best = dict.fromkeys(actions, math.inf)
    for _ in range(repeats):
        for name, action in actions.items():
            best[name] = min(best[name], timed(action, calls[name]))
    return best


def timed(action: Callable[[], object], calls: int) -> float:
    """Return this thread's processor time per call in nanoseconds, a mean over `calls` calls."""
    begin = time.thread_time_ns()
    for _ in range(calls):
        action()
    return (time.thread_time_ns() - begin) / calls
