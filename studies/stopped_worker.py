"""`python -m studies.stopped_worker`: real and simulated jobs in which one worker is stopped by a signal.

A real job trains studies/paced_task.py on this machine: its passes only wait, for times that are drawn for every step of every
worker. --stop seconds after the beginning of the first step, worker --rank is stopped (SIGSTOP) for --pause seconds. The
simulation of `psnode simulate` gets the same draws, a profile of the same task, and the time of the stop. A row compares, for
each --consistency, which workers each version has gradients of, which gradients it has (pairs of a worker and the version that
the gradient was computed on), and the time from the first to the last version.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psnode.config import Config
from psnode.config.declaration import option
from psnode.config.load import load
from psnode.errors import ConfigurationError
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.profiling import measure as measure_profile
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.simulating.disturbances import Spread, Standstill
from psnode.jobs.simulating.simulated_job import Disturbances, simulate_job
from psnode.records.history import HISTORY
from psnode.records.metrics import METRICS, read_records
from scripts.running import ROOT, Job, send
from studies.harness import Column, Found, Result, Study, main
from studies.paced_task import PacedTask

_NAME = "dense"
_ROUND_TRIP = 4e-4  # seconds of a request and its answer between ranks of one machine (docs/decisions/mpi-thread.md)
_TIME = 0.15  # the largest accepted difference of the times

Gradients = frozenset[tuple[int, int]]  # pairs of a worker and the version that its gradient was computed on


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.stopped_worker`."""

    consistency: tuple[str, ...] = option(
        ("kofn --num-aggregate 3", "ssp --staleness 4", "asp"), "And flags of train; repeat for more.", repeated=True
    )
    workers: int = option(4, "Of the job.", minimum=2, metavar="P", aliases=("-n",))
    seconds: float = option(0.2, "Mean of a pass.", above=0)
    jitter: float = option(0.2, "Standard deviation of the logarithm of a pass's duration.", minimum=0)
    seed: int = option(1, "Of the durations.", minimum=0)
    versions: int = option(160, "That a job makes.", minimum=3)
    stop: float = option(2.0, "Seconds from the beginning of the first step to the stop.", minimum=0)
    rank: int = option(2, "Of the worker that is stopped.", minimum=1)
    pause: float = option(5.0, "Seconds of the stop.", above=0)


@dataclass(frozen=True)
class Course:
    """The course of a job: the gradients in each version, and the seconds from the first version to the last one."""

    added: Sequence[Gradients]
    seconds: float


def measure(options: Options) -> Found:
    """Return a row for each consistency: its text, and the members of `compared`."""
    if options.rank > options.workers:
        raise ConfigurationError(f"--rank {options.rank}: there are {options.workers} workers")
    profile = profile_of(options)
    rows = []
    for text in options.consistency:
        rules = rules_of(text)
        with tempfile.TemporaryDirectory(prefix="psnode-stopped-", ignore_cleanup_errors=True) as folder:
            real = real_course(options, rules, Path(folder))
        simulated = simulated_course(options, load(rules, {}), profile)
        row = compared(real, simulated)
        rows.append({"consistency": text, **row})
        print(f"{text}: {100 * row['gradients']:.0f} % of the gradients in the same version", file=sys.stderr, flush=True)
    return Found(rows)


def rules_of(text: str) -> dict[str, Any]:
    """Return the settings that the name of a consistency and the flags after it stand for."""
    name, *words = shlex.split(text)
    flags = zip(words[::2], words[1::2], strict=True)
    return {"consistency": name, **{flag.removeprefix("--").replace("-", "_"): int(value) for flag, value in flags}}


def profile_of(options: Options) -> Profile:
    """Return the profile of the task, all of whose passes take --seconds."""
    config = load({"batch_size": 4, "threads": 1, "scheme": _NAME}, {})
    return measure_profile(config, {_NAME: config}, task=PacedTask({"seconds": str(options.seconds)}))


def real_course(options: Options, rules: Mapping[str, Any], folder: Path) -> Course:
    """Run a real job, and return its course. Raises ConfigurationError if the job fails."""
    begun, run = folder / "begun", folder / "run"
    task = {"seconds": options.seconds, "jitter": options.jitter, "seed": options.seed, "begun": begun}
    flags = {
        "--scheme": _NAME, "--max-steps": options.versions, "--lr": 1e-3, "--eval-freq": 0, "--threads": 1, "--batch-size": 4,
        **{f"--{name.replace('_', '-')}": value for name, value in rules.items()},
    }  # fmt: skip
    words = [
        "--task", f"{ROOT / 'studies' / 'paced_task.py'}:PacedTask", "--record-history", "--no-tensorboard",
        *(str(word) for flag in flags.items() for word in flag),
        *(word for key, value in task.items() for word in ("--task-option", f"{key}={value}")),
    ]  # fmt: skip
    job = Job(run, options.workers, words)
    process = job.process
    try:
        if (start := _start(job, begun, options.workers)) is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, start + options.stop - time.time()))
        if job.running:
            _stop_for(job.ranks()[options.rank], options.pause)
            if not job.running:
                raise ConfigurationError("the job ended during the stop: ask for more --versions")
        process.wait(60 + 4 * options.versions * options.seconds)
    except subprocess.TimeoutExpired:
        raise ConfigurationError(f"the real job does not end: {job.log.read_text()[-2000:]}") from None
    finally:
        process.terminate()  # psnode launch ends its ranks
        process.wait()
    if process.returncode:
        raise ConfigurationError(f"the real job ended with code {process.returncode}: {job.log.read_text()[-2000:]}")
    seconds = [record["seconds"]["step"] for record in read_records(run / METRICS)]
    lines = [line for line in read_records(run / HISTORY) if "groups" in line]
    added = [frozenset((rank, based) for group in line["groups"] for rank, _, based in group) for line in lines]
    return Course(added, sum(seconds[1:]))


def _stop_for(process: int, seconds: float) -> None:
    try:
        send(process, signal.SIGSTOP)
        time.sleep(seconds)
    finally:
        send(process, signal.SIGCONT)


def _start(job: Job, begun: Path, last: int) -> float | None:
    """Return the time at which worker `last` began its first step; None if the job ended before.

    Worker 1 is not asked, since it also makes passes before the first step.
    """
    while job.running:
        for line in begun.read_text().splitlines(keepends=True) if begun.exists() else ():
            rank, _, at = line.partition(" ")
            if rank == str(last) and at.endswith("\n"):
                return float(at)
        time.sleep(0.01)
    return None


def simulated_course(options: Options, config: Config, profile: Profile) -> Course:
    """Return the course of the simulated job."""
    spread, scenario = Spread(options.jitter, (), options.seed), Scenario(options.workers, None, _ROUND_TRIP, profile.host.cores)
    still = Standstill(options.rank, options.stop, options.stop + options.pause)
    costs, disturbances = profile.schemes[_NAME], Disturbances(spread, [still])
    found = simulate_job(profile, costs, scenario, config, options.versions, disturbances)
    added = [frozenset((each.rank, each.based) for group in version.added for each in group) for version in found.versions]
    return Course(added, found.versions[-1].finished - found.versions[0].finished)


def compared(real: Course, simulated: Course) -> dict[str, float]:
    """Return the members of a row.

    `workers`, `gradients`: the shares of the workers' contributions, and of the gradients, that both jobs have in the same
    version, among all that either job has. `real`, `simulated`: seconds from the first to the last version.
    """
    workers = [[frozenset(rank for rank, _ in version) for version in course.added] for course in (real, simulated)]
    return {
        "workers": common(*workers), "gradients": common(real.added, simulated.added),
        "real": real.seconds, "simulated": simulated.seconds,
    }  # fmt: skip


def common(real: Sequence[frozenset[Any]], simulated: Sequence[frozenset[Any]]) -> float:
    """Return the share of the members of all sets of either sequence that both have at the same place."""
    both = sum(len(one & other) for one, other in zip(real, simulated, strict=True))
    return both / sum(len(one | other) for one, other in zip(real, simulated, strict=True))


COLUMNS = (
    Column("--consistency", "{consistency}", left=True),
    Column("workers in the same version, %", lambda row: f"{100 * row['workers']:.1f}"),
    Column("gradients in the same version, %", lambda row: f"{100 * row['gradients']:.1f}"),
    Column("real, s", "{real:.2f}"),
    Column("simulated, s", "{simulated:.2f}"),
    Column("off, %", lambda row: f"{100 * (row['simulated'] / row['real'] - 1):+.1f}"),
)


def _head(result: Result) -> str:
    return (
        f"{result['workers']} workers, {result['versions']} versions, passes of {result['seconds']:g} s on average; worker "
        f"{result['rank']} stopped for {result['pause']:g} s."
    )


def _passed(result: Result) -> bool:
    return all(abs(row["simulated"] / row["real"] - 1) <= _TIME for row in result["rows"])


STUDY = Study(Options, measure, COLUMNS, head=_head, passed=_passed)


if __name__ == "__main__":
    sys.exit(main(STUDY))
