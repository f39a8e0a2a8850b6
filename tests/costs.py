"""Costs of the tests by file, printed at the end of a run: processor time, wall-clock time and started processes.

Processor time covers the test process and its descendants that were waited for, without the collection of tests. Started
processes are counted from the command lines that tests start: the ranks of `mpirun -n`, the ranks and the launcher of `psnode
launch -n`, and one for every other Python command.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

import pytest

from tests.forking import FORKING

SHOWN = 60
_KEY = "cost"


def processor_time() -> float:
    """Return the seconds of processor time used so far by this process, its awaited descendants and the forks
    of tests.forking.
    """
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + FORKING.processor_time()


def processes(command: Sequence[Any]) -> int:
    """Return the number of Python interpreters that a command line starts: 0 if the program is not Python."""
    words = [os.fsdecode(word) if isinstance(word, bytes | os.PathLike) else str(word) for word in command]
    names = {PurePath(word).name for word in words}
    python = any(name.startswith(("python", "psnode")) for name in names)
    if not python:
        return 0
    ranks = 0
    for word, number in itertools.pairwise(words):
        if word in ("-n", "-np") and number.isdigit():
            ranks += int(number)
    if "launch" in words:
        return ranks + 2  # the master and the launcher
    return ranks or 1


class Costs:
    """The pytest plugin that measures costs. On a worker of pytest-xdist it measures; in the process that receives the
    reports it sums and prints.
    """

    def __init__(self) -> None:
        self._before, self._started = processor_time(), 0
        self.seconds, self.starts, self.clock, self.groups = (Counter[str]() for _ in range(4))
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and not isinstance(arguments[1], str | bytes):
            self._started += processes(arguments[1])

    def pytest_collection_finish(self) -> None:
        """Reset the counts, since the collection belongs to no test."""
        self._before, self._started = processor_time(), 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[Any]:
        """Attach to the report of each phase the costs since the phase before."""
        now = processor_time()
        cost = now - self._before, self._started
        self._before, self._started = now, 0
        report = yield
        report.user_properties.append((_KEY, cost))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the costs of a report. Its last entry belongs to its own phase, the others to earlier phases."""
        file, _, name = report.nodeid.partition("::")
        self.clock[file] += report.duration
        group = name.rpartition("]")[2].partition("@")[2]  # appended by pytest-xdist
        self.groups[group if group in ("serial", "jobs") else "no"] += report.duration
        costs = [value for name, value in report.user_properties if name == _KEY]
        if costs:
            seconds, starts = costs[-1]
            self.seconds[file] += seconds
            self.starts[file] += starts

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the sums, and the files with the highest costs."""
        terminalreporter.section("costs")
        for file, seconds in self.seconds.most_common(SHOWN):
            terminalreporter.line(f"{seconds:8.1f} s {self.clock[file]:8.1f} s {self.starts[file]:5} started  {file}")
        groups = ", ".join(f"{seconds / 60:.1f} in {name} group" for name, seconds in self.groups.most_common())
        terminalreporter.line(f"minutes on the clock: {groups}")
        total, starts = self.seconds.total() / 60, self.starts.total()
        terminalreporter.line(f"{total:.1f} minutes of processor time, {starts} processes started by tests")
