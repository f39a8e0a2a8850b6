"""Repeated timing of a call, with quartiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def rate(action: Callable[[], object], nbytes: int, seconds: float, least: int = 5, most: int = 100) -> dict[str, float]:
    """GB/s of `nbytes` an execution: `median`, and the quartiles `low` and `high`.

    One execution warms up; then it is repeated at least `least` times, at most `most`, for about `seconds`.
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
