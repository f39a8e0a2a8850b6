"""`python -m studies.threads`: processor time of a step by thread, in a real job on this machine.

A master and W workers train under `psnode launch` over shared memory. As the floor, W processes without any exchange train the
same model. The job and the floor are set up as in `psnode bench peers`, and take turns, once per round. In each of them, the
kernel's processor times are read at two steps, for every thread of every rank and for the whole machine. Steps are timed by the
workers' marks (bench/contest/step_marks).
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from psnode.bench.contest.contender_run import step_durations
from psnode.bench.contest.contenders import Ddp, Psnode, SharedSettings
from psnode.bench.contest.labs import environment
from psnode.bench.contest.local_processes import run_processes
from psnode.bench.contest.step_marks import read_marks
from psnode.config.declaration import option
from psnode.errors import TransportError
from psnode.jobs.launch import launch
from psnode.records.metrics import METRICS
from studies.harness import Column, Found, Result, Row, Study, main
from studies.processor import Thread, between, machine, ranks, threads

SCHEME = "topk:ratio=0.005+fp16 --downlink topk:ratio=0.005+fp16"
_AFTER = 5  # steps after the measured ones, during which all threads still exist
_POLL_SECONDS = 0.01
_READ_SECONDS = 0.25
_OTHERS = "others"
_NAMES = (("psnode-mpi", "MPI thread"), ("encode", "encoder"), ("lane", "lanes"), ("heartbeat", "heartbeat"))
_PROCESS_SECONDS = 900.0


class Books(NamedTuple):
    """Processor times after `steps` steps, in milliseconds, of all threads and of the machine."""

    steps: int
    threads: Mapping[Thread, float]
    machine: Mapping[str, float]


class Watch:
    """Reader of processor times: first after `first` steps, then repeatedly until `last` steps.

    `count()` returns the steps so far. The watch reads in its own thread, as long as processes with `argument` in their command
    line run. The last reading that includes all threads counts, since a short job may end before the next reading.
    """

    def __init__(self, argument: str, first: int, last: int, count: Callable[[], int]) -> None:
        self._argument, self._limits, self._count = argument, (first, last), count
        self._books: list[Books] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        first, last = self._limits
        steps = self._wait(first)
        processes = ranks(self._argument)
        while not self._over.is_set():
            self._books.append(Books(steps, threads(processes), machine()))
            if steps >= last or self._over.wait(_READ_SECONDS):
                return
            steps = self._wait(steps + 1)

    def _wait(self, least: int) -> int:
        """Block until at least `least` steps are done, or until the watch is over. Return the number of steps."""
        while (steps := self._count()) < least and not self._over.wait(_POLL_SECONDS):
            pass
        return steps

    def read(self) -> tuple[dict[Thread, float], dict[str, float]]:
        """Return the milliseconds of processor time per step, by thread, and those of the machine, by kind.

        Raises TransportError if the steps ended before two readings.
        """
        own = [{thread[:3] for thread in book.threads if _name(thread) != _OTHERS} for book in self._books]
        whole = [book for book, there in zip(self._books, own, strict=True) if own[0] <= there]
        if not own or not own[0] or whole[-1].steps == whole[0].steps:
            raise TransportError("the steps were over before the books were read twice: take more --steps")
        first, last = whole[0], whole[-1]
        steps = last.steps - first.steps
        used = {thread: spent / steps for thread, spent in between(first.threads, last.threads).items()}
        return used, {kind: (last.machine[kind] - first.machine[kind]) / steps for kind in last.machine}


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.threads`."""

    network: str = option("torchvision:resnet18", "Same as for train.")
    dataset: str = option("synthetic", "Same as for train.")
    data_dir: Path | None = option(None, "Same as for train.", metavar="DIR")
    workers: int = option(4, "Workers of the job.", minimum=1, aliases=("-n",))
    batch_size: int = option(16, "Examples a worker takes in a step.", minimum=1)
    lr: float = option(0.01, "Same as for train.", above=0)
    seed: int = option(1, "Of the first round; then the next.", minimum=0)
    scheme: str = option(SCHEME, "A scheme, and flags of train.", metavar="'NAME [FLAG VALUE]...'")
    steps: int = option(40, "Steps to measure.", minimum=2)
    warmup: int = option(10, "Steps before them.", minimum=1)
    rounds: int = option(3, "How often everything is measured.", minimum=1)


def measure(options: Options) -> Found:
    """Return rows with a name and `values`, a figure for each round.

    For all rows together: `measured`, the figures of all rounds (see `_figures`). Round r trains with seed + r. Raises
    ConfigurationError for a scheme that train refuses, and TransportError if a job fails.
    """
    from psnode.tasks.classification import Classification

    directory = None if options.data_dir is None else str(options.data_dir.expanduser().absolute())
    Classification(options.network, options.dataset, directory)
    ground = SharedSettings(
        network=options.network, dataset=options.dataset, data_dir=directory, workers=options.workers, batch=options.batch_size,
        lr=options.lr, seed=options.seed, steps=options.warmup + options.steps + _AFTER,
    )  # fmt: skip
    found = []
    for number in range(options.rounds):
        here = replace(ground, seed=ground.seed + number)
        with tempfile.TemporaryDirectory(prefix="psnode-threads-", ignore_cleanup_errors=True) as folder:
            (Path(folder) / "marks").mkdir()
            job = _job(here, options.scheme, options.warmup, Path(folder))
        with tempfile.TemporaryDirectory(prefix="psnode-threads-", ignore_cleanup_errors=True) as folder:
            (Path(folder) / "marks").mkdir()
            floor = _floor(here, options.warmup, Path(folder))
        shown = f"{job['step_ms']:.1f} ms a step, {floor['step_ms']:.1f} without communication"
        print(f"round {number + 1}: {shown}", file=sys.stderr, flush=True)
        found.append({"job": job, "floor": floor})
    return Found(list(_rows(found)), {"measured": found})


def _job(ground: SharedSettings, scheme: str, warmup: int, folder: Path) -> dict[str, Any]:
    arguments = Psnode(scheme).arguments(ground, folder)
    metrics = folder / "run" / METRICS
    with Watch(str(folder / "run"), warmup, ground.steps - _AFTER, lambda: _lines(metrics)) as watch:
        code = launch(ground.workers, arguments, program="studies.named")
    if code != 0:
        raise TransportError(f"the job ended with exit code {code}: see its messages above")
    return _figures(watch, ground, warmup, folder, lambda thread: ("worker" if thread.rank else "master", _name(thread)))


def _floor(ground: SharedSettings, warmup: int, folder: Path) -> dict[str, Any]:
    """Run the same number of workers without any exchange, one process each, and return their figures."""
    command = Ddp("none").command(ground, folder)
    marks = folder / "marks"
    with Watch(command[-1], warmup, ground.steps - _AFTER, lambda: min(map(_lines, marks.iterdir()), default=0)) as watch:
        run_processes(command, ground.workers, _PROCESS_SECONDS, environment())
    return _figures(watch, ground, warmup, folder, lambda thread: ("worker", _name(thread)))


def _lines(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.read_bytes().count(b"\n")
    return 0


def _name(thread: Thread) -> str:
    if thread.is_main:
        return "main thread"
    return next((name for prefix, name in _NAMES if thread.name.startswith(prefix)), _OTHERS)


def _figures(
    watch: Watch, ground: SharedSettings, warmup: int, folder: Path, role: Callable[[Thread], tuple[str, str]]
) -> dict[str, Any]:
    """Return the figures of a run.

    `step_ms`: the median step time in ms. `threads`: processor time in ms per step by role and name, for workers the mean.
    `machine`: processor time of the machine in ms per step by kind.
    """
    marks = read_marks(folder / "marks", ground.steps)
    if len(marks) != ground.workers or any(len(each) != ground.steps for each in marks):
        raise TransportError(f"{len(marks)} workers took {[len(each) for each in marks]} steps")
    used, all_used = watch.read()
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for thread, milliseconds in used.items():
        kind, name = role(thread)
        found[kind][name] += milliseconds / (ground.workers if kind == "worker" else 1)
    return {
        "step_ms": 1e3 * statistics.median(step_durations(marks)[warmup : ground.steps - _AFTER]),
        "threads": {kind: dict(sorted(names.items())) for kind, names in found.items()},
        "machine": all_used,
    }


def _rows(rounds: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    steps = [[each[contender]["step_ms"] for each in rounds] for contender in ("job", "floor")]
    yield {"name": "a step", "values": steps[0]}
    yield {"name": "without communication", "values": steps[1]}
    yield {"name": "the one over the other", "values": [job / floor for job, floor in zip(*steps, strict=True)], "digits": 3}
    for contender, title in (("job", ""), ("floor", " without communication")):
        threads_of = [each[contender]["threads"] for each in rounds]
        for kind, names in threads_of[0].items():
            whose = "the master" if kind == "master" else "a worker"
            for name in names:
                yield {"name": f"{whose}{title}, {name}", "values": [found[kind].get(name, 0.0) for found in threads_of]}
    for kind in rounds[0]["job"]["machine"]:
        spent = [each["job"]["machine"][kind] for each in rounds]
        if max(spent) >= 1:
            yield {"name": f"the machine, {kind}", "values": spent}


def _head(result: Result) -> str:
    job = f"{result['network']}, {result['workers']} workers x {result['batch_size']}, `--scheme {result['scheme']}`"
    steps = result["warmup"] + result["steps"] + _AFTER
    return f"{job}, shared memory; {len(result['measured'])} rounds of {steps} steps."


def _number(value: float, row: Row) -> str:
    return f"{value:.{row.get('digits', 1)}f}"


COLUMNS = (
    Column("a step, ms", "{name}", left=True),
    Column("median", lambda row: _number(statistics.median(row["values"]), row)),
    Column("least to most", lambda row: f"{_number(min(row['values']), row)} to {_number(max(row['values']), row)}"),
)
STUDY = Study(Options, measure, COLUMNS, _head)


if __name__ == "__main__":
    sys.exit(main(STUDY))
