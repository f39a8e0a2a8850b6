"""Disturbances of a simulated job: unequal durations of passes, and workers that pause or die."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from psnode.errors import ConfigurationError

_NUMBER = r"(\d+(?:\.\d+)?)"
_STOP = re.compile(rf"(\d+)@{_NUMBER}:{_NUMBER}")
_KILL = re.compile(rf"(\d+)@{_NUMBER}")


@dataclass(frozen=True)
class Standstill:
    """A pause of worker `rank`: its processes do nothing from time `begin` to time `end`, in seconds."""

    rank: int
    begin: float
    end: float

    @classmethod
    def of(cls, text: str) -> Standstill:
        """Return the pause that a text RANK@SECONDS:DURATION describes. Raises ConfigurationError for any other text."""
        match = _STOP.fullmatch(text)
        if match is None:
            raise ConfigurationError(f"--stop must be RANK@SECONDS:DURATION, such as 2@3.0:5, not {text!r}")
        return cls(int(match[1]), float(match[2]), float(match[2]) + float(match[3]))


@dataclass(frozen=True)
class Death:
    """The death of worker `rank` at `time`, in seconds from the beginning of the job."""

    rank: int
    time: float

    @classmethod
    def of(cls, text: str) -> Death:
        """Return the death that a text RANK@SECONDS describes. Raises ConfigurationError for any other text."""
        match = _KILL.fullmatch(text)
        if match is None:
            raise ConfigurationError(f"--kill must be RANK@SECONDS, such as 3@2.0, not {text!r}")
        return cls(int(match[1]), float(match[2]))


@dataclass(frozen=True)
class Spread:
    """The random spread of the durations of passes. The durations in the profile are multiplied by factors.

    A new factor is drawn for every step of every worker. `relative`: measured durations in any unit. If there are any, each
    factor is one of these durations, divided by `usual`, or by their mean if `usual` is None. Otherwise the factors have a
    log-normal distribution with mean 1, and `jitter` is the standard deviation of their logarithm. `seed`: the seed of all
    draws.
    """

    jitter: float = 0.0
    relative: tuple[float, ...] = ()
    seed: int = 1
    usual: float | None = None

    def factors(self, rank: int) -> Callable[[], float]:
        """Return a function that draws the factor of the next step of worker `rank`."""
        if self.relative:
            generator, usual = np.random.default_rng((self.seed, rank)), self.usual or np.mean(self.relative)
            values = np.array(self.relative) / usual
            return lambda: float(values[generator.integers(len(values))])
        if self.jitter:
            generator, sigma = np.random.default_rng((self.seed, rank)), self.jitter
            return lambda: float(np.exp(sigma * generator.standard_normal() - sigma * sigma / 2))
        return lambda: 1.0


def durations_of(file: Path) -> tuple[float, ...]:
    """Return the durations of passes in a file, which has one number above 0 per line.

    Raises ConfigurationError if the file contains anything else.
    """
    try:
        found = tuple(map(float, file.read_text().split()))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--pass-times {file} cannot be used ({error}): write one duration per line") from error
    if not found or not all(0 < value < np.inf for value in found):
        raise ConfigurationError(f"--pass-times {file} must hold durations above 0, one per line")
    return found


def through(standstills: Sequence[Standstill], start: float, seconds: float) -> float:
    """Return the time at which a worker ends work that it begins at `start` and that takes `seconds`.

    The work waits during `standstills`, the pauses of the worker in the order in which they begin.
    """
    end = start + seconds
    for still in standstills:
        if still.begin <= start < still.end:
            start, end = still.end, still.end + seconds
        elif start < still.begin < end:
            end += still.end - still.begin
    return end


def of_rank(standstills: Iterable[Standstill], rank: int) -> list[Standstill]:
    """Return the pauses of worker `rank` in the order in which they begin. Pauses that overlap are joined into one."""
    found: list[Standstill] = []
    for still in sorted((still for still in standstills if still.rank == rank), key=lambda still: still.begin):
        if found and still.begin <= found[-1].end:
            found[-1] = Standstill(rank, found[-1].begin, max(found[-1].end, still.end))
        else:
            found.append(still)
    return found
