"""A sweep of trials, which are trained one after another, either each to its end or by successive halving.

In successive halving (Jamieson and Talwalkar, AISTATS 2016), all trials train for a few steps. The best of them, one in
`halving`, continue to `halving` times as many steps, and so on. A trial that continues is resumed, not repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from psnode.errors import DivergedError, PsnodeError
from psnode.jobs.tuning.replicas import Replicas, mean_and_error
from psnode.jobs.tuning.sampling import draw
from psnode.jobs.tuning.space import Varied, grid
from psnode.jobs.tuning.trial import STOPPED, Trial

UNMEASURED = "not evaluated"  # the training succeeded but the evaluation failed; the same command repeats it
_BLIND = 10  # maximum number of random trials before the sampler uses results; fewer in short sweeps


class SweepStoppedError(PsnodeError):
    """Error for a sweep that stops because one of its trials was stopped. If its command is given again, the sweep continues."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("stopped: the same command continues with the remaining trials")
        self.exit_code = exit_code


def _unwatched(trial: Trial, steps: int, which: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Sweep:
    """Parameters of a sweep, whose trials take `steps` steps and are compared by `metric`.

    `halving`: 0, or N if one trial in N continues after each comparison. `seed`: the seed with which random trials are drawn.
    `watch(trial, step, description)` returns the context manager in which `trial` advances to `step`. `seeds`: the seeds with
    which every trial is trained; trials are compared by their mean result. With only one seed, each trial keeps the seed of
    its own options.
    """

    steps: int
    metric: str
    maximize: bool
    halving: int = 0
    seed: int = 1
    watch: Callable[[Trial, int, str], AbstractContextManager[None]] = _unwatched
    seeds: tuple[int, ...] = (1,)

    def rungs(self, trials: int) -> list[int]:
        """Return the numbers of steps after which trials are compared, in ascending order; the last one is `steps`."""
        if not self.halving:
            return [self.steps]
        most = 0
        while self.halving ** (most + 1) <= trials:
            most += 1
        return sorted({max(1, self.steps // self.halving**power) for power in range(most + 1)})

    def rank(self, results: Sequence[float]) -> list[int]:
        """Return the indices of `results`, best first. Of equal results, the earlier one comes first."""
        return sorted(range(len(results)), key=lambda index: -results[index] if self.maximize else results[index])


@dataclass(frozen=True)
class TrialOutcome:
    """A trial with its last result and the step of that result.

    `state`: "done", "dropped", or the reason why there is no result. With several seeds, `result` is the mean over the seeds,
    `error` is the standard error of this mean, and `results` has the value of each seed.
    """

    replicas: Replicas
    state: str
    steps: int
    result: float | None
    error: float | None = None
    results: tuple[float | None, ...] = ()

    @property
    def trial(self) -> Trial:
        """The trial before a seed is added to its options."""
        return self.replicas.trial


def run(
    varied: Sequence[Varied], sweep: Sweep, make: Callable[[dict[str, str]], Trial], count: int, tell: Callable[[str], None]
) -> list[TrialOutcome]:
    """Run a sweep, and return the outcomes of its trials, best first.

    If a name is varied over a range, there are `count` drawn trials. Otherwise there is a trial for every combination of the
    lists. `make` creates a trial from values. `tell` is called with a line about each trial when it ends. Raises
    SweepStoppedError if a trial was stopped.
    """
    if not any(one.is_range for one in varied):
        trials = _distinct(make(values) for values in grid(varied))
        found = _climb(trials, sweep, tell)
    elif sweep.halving:
        trials = _distinct(make(values) for values in _drawn(varied, sweep, count))
        found = _climb(trials, sweep, tell)
    else:
        found = _one_by_one(varied, sweep, make, count, tell)
    order = sweep.rank([_worst(sweep) if one.result is None else one.result for one in found])
    return sorted((found[index] for index in order), key=lambda one: (-one.steps, one.result is None))


def _worst(sweep: Sweep) -> float:
    return -math.inf if sweep.maximize else math.inf


def _distinct(trials: Iterator[Trial]) -> list[Trial]:
    """Return the trials, keeping only one of several trials that would run the same command."""
    return list({trial.arguments: trial for trial in trials}.values())


def _drawn(varied: Sequence[Varied], sweep: Sweep, count: int) -> Iterator[dict[str, str]]:
    """Yield the values of `count` random trials."""
    earlier: list[tuple[dict[str, str], float | None]] = []
    for _ in range(count):
        values = draw(varied, earlier, seed=sweep.seed, maximize=sweep.maximize, blind=count)
        earlier.append((values, None))
        yield values


def _one_by_one(
    varied: Sequence[Varied], sweep: Sweep, make: Callable[[dict[str, str]], Trial], count: int, tell: Callable[[str], None]
) -> list[TrialOutcome]:
    """Run `count` trials. The values of each trial are drawn when the results of all earlier trials are known."""
    earlier: list[tuple[dict[str, str], float | None]] = []
    found: dict[tuple[str, ...], TrialOutcome] = {}
    for number in range(1, count + 1):
        values = draw(varied, earlier, seed=sweep.seed, maximize=sweep.maximize, blind=min(_BLIND, max(2, count // 3)))
        outcome = _attempt(make(values), sweep.steps, sweep, f"trial {number} of {count}", tell)
        found[outcome.trial.arguments] = outcome
        earlier.append((values, outcome.result))
    return list(found.values())


def _climb(trials: Sequence[Trial], sweep: Sweep, tell: Callable[[str], None]) -> list[TrialOutcome]:
    """Run every trial to the first rung (number of steps), and only the best trials of each rung to the next one."""
    found: dict[tuple[str, ...], TrialOutcome] = {}
    rungs = sweep.rungs(len(trials))
    climbing = [*trials]
    for level, steps in enumerate(rungs):
        outcomes = [
            _attempt(trial, steps, sweep, f"trial {number} of {len(climbing)}", tell) for number, trial in enumerate(climbing, 1)
        ]
        found |= {one.trial.arguments: one for one in outcomes}
        alive = [one for one in outcomes if one.result is not None]
        if level + 1 < len(rungs):
            kept = max(1, len(climbing) // sweep.halving)
            best = set(sweep.rank([one.result for one in alive if one.result is not None])[:kept])
            climbing = [one.trial for index, one in enumerate(alive) if index in best]
    return list(found.values())


def _attempt(trial: Trial, steps: int, sweep: Sweep, which: str, tell: Callable[[str], None]) -> TrialOutcome:
    replicas = Replicas(trial, sweep.seeds)
    for run in replicas.runs:
        with sweep.watch(run, steps, which):
            code = run.advance(steps, sweep.metric)
        if code in STOPPED:
            raise SweepStoppedError(code)
        if code:
            break
    failed = any(run.failed(steps) for run in replicas.runs)
    results = [] if code else replicas.results(steps, sweep.metric)
    result, error = mean_and_error(results)
    if code == DivergedError.exit_code or (result is None and not code):
        state = "diverged"
    elif code:
        state = f"failed ({code})" if failed else f"{UNMEASURED} ({code})"
    else:
        state = "dropped" if steps < sweep.steps else "done"
    spread = "" if error is None else f" ± {error:.2g}"
    shown = f"{sweep.metric} {result:.4g}{spread}" if result is not None else f"{state}, see {run.directory / 'output.log'}"
    tell(f"{which}, step {steps}: {trial.name}: {shown}")
    return TrialOutcome(replicas, state, steps, result, error, tuple(results))
