"""`psnode bench threads`: processor time of a step by thread, of a real job on this machine.

A master and W workers train under `psnode launch`, over shared memory; W processes without any exchange train the same model as
the floor (both as in `psnode bench peers`); they take turns, once a round. Between two steps of each the kernel's books are read
for every thread of every rank, and for the machine as a whole. A step is timed by the workers' marks (psnode.bench.marks).
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from psnode.bench.contenders import Ddp, Ground, Psnode
from psnode.bench.hardware import hardware
from psnode.bench.labs import environment
from psnode.bench.marks import read_marks
from psnode.bench.processor import Thread, between, machine, ranks, threads
from psnode.bench.saving import save
from psnode.bench.trial import step_durations
from psnode.errors import ConfigurationError, TransportError
from psnode.jobs.launch import launch
from psnode.records.metrics import METRICS

SCHEME = "topk:ratio=0.005+fp16 --downlink topk:ratio=0.005+fp16"
_AFTER = 5  # steps behind the measured ones, while which all threads are still there
_POLL_SECONDS = 0.01
_READ_SECONDS = 0.25
_OTHERS = "others"
_NAMES = (("psnode-mpi", "MPI thread"), ("encode", "encoder"), ("lane", "lanes"), ("heartbeat", "heartbeat"))
_PROCESS_SECONDS = 900.0


class Books(NamedTuple):
    """Milliseconds of processor time so far, and the number of steps."""

    steps: int
    threads: Mapping[Thread, float]
    machine: Mapping[str, float]


class Watch:
    """Reads the books when `first` steps have come, and then now and then until `last` have; `count()` tells how many there are.

    In a thread of its own, while the processes run that have `argument` in their command line. The last books that hold all of
    the threads are those that count: a short job may end before anybody looks again.
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
        """The number of steps as soon as it is `least`, or when all is over."""
        while (steps := self._count()) < least and not self._over.wait(_POLL_SECONDS):
            pass
        return steps

    def read(self) -> tuple[dict[Thread, float], dict[str, float]]:
        """Milliseconds a step by thread, and of the machine by kind. TransportError if the steps were over too early."""
        own = [{thread[:3] for thread in book.threads if _name(thread) != _OTHERS} for book in self._books]
        whole = [book for book, there in zip(self._books, own, strict=True) if own[0] <= there]
        if not own or not own[0] or whole[-1].steps == whole[0].steps:
            raise TransportError("the steps were over before the books were read twice: take more --steps")
        first, last = whole[0], whole[-1]
        steps = last.steps - first.steps
        used = {thread: spent / steps for thread, spent in between(first.threads, last.threads).items()}
        return used, {kind: (last.machine[kind] - first.machine[kind]) / steps for kind in last.machine}


def run(
    ground: Ground, scheme: str, *, warmup: int, rounds: int, tell: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure; round r trains with seed + r. Of a ground's steps the first `warmup` are not measured, nor the last few.

    Raises ConfigurationError for a scheme that train refuses, TransportError if a job fails.
    """
    if ground.steps - _AFTER - warmup < 2:
        raise ConfigurationError(f"{ground.steps - _AFTER - warmup} measured steps have no spread: take 2 or more")
    found = []
    for number in range(rounds):
        here = replace(ground, seed=ground.seed + number)
        with tempfile.TemporaryDirectory(prefix="psnode-threads-", ignore_cleanup_errors=True) as folder:
            (Path(folder) / "marks").mkdir()
            job = _job(here, scheme, warmup, Path(folder))
        with tempfile.TemporaryDirectory(prefix="psnode-threads-", ignore_cleanup_errors=True) as folder:
            (Path(folder) / "marks").mkdir()
            floor = _floor(here, warmup, Path(folder))
        tell(f"round {number + 1}: {job['step_ms']:.1f} ms a step, {floor['step_ms']:.1f} without communication")
        found.append({"job": job, "floor": floor})
    return {**hardware(), "scheme": scheme, "ground": asdict(ground), "warmup": warmup, "rounds": found}


def _job(ground: Ground, scheme: str, warmup: int, folder: Path) -> dict[str, Any]:
    arguments = Psnode(scheme).arguments(ground, folder)
    metrics = folder / "run" / METRICS
    with Watch(str(folder / "run"), warmup, ground.steps - _AFTER, lambda: _lines(metrics)) as watch:
        code = launch(ground.workers, arguments, program=(sys.executable, "-m", "psnode.bench.named"))
    if code != 0:
        raise TransportError(f"the job ended with exit code {code}: see its messages above")
    return _figures(watch, ground, warmup, folder, lambda thread: ("worker" if thread.rank else "master", _name(thread)))


def _floor(ground: Ground, warmup: int, folder: Path) -> dict[str, Any]:
    """The same workers without any exchange, a process each."""
    command = Ddp("none").command(ground, folder)
    marks = folder / "marks"
    with Watch(command[-1], warmup, ground.steps - _AFTER, lambda: min(map(_lines, marks.iterdir()), default=0)) as watch:
        _together(command, ground.workers)
    return _figures(watch, ground, warmup, folder, lambda thread: ("worker", _name(thread)))


def _together(command: Sequence[str], count: int) -> None:
    """Run `count` processes that torch.distributed joins. TransportError if one fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(command, env={**environment(), **common, "RANK": str(rank)}, stdin=subprocess.DEVNULL)
        for rank in range(count)
    ]
    end = time.monotonic() + _PROCESS_SECONDS
    try:
        codes = [process.wait(max(0.0, end - time.monotonic())) for process in started]
    except subprocess.TimeoutExpired:
        raise TransportError(f"the processes without communication did not end within {_PROCESS_SECONDS:g} s") from None
    finally:
        for process in started:
            process.kill()
            process.wait()
    if any(codes):
        raise TransportError(f"a process without communication ended with exit code {max(codes, key=abs)}: see above")


def _lines(file: Path) -> int:
    with contextlib.suppress(OSError):
        return file.read_bytes().count(b"\n")
    return 0


def _name(thread: Thread) -> str:
    if thread.is_main:
        return "main thread"
    return next((name for prefix, name in _NAMES if thread.name.startswith(prefix)), _OTHERS)


def _figures(
    watch: Watch, ground: Ground, warmup: int, folder: Path, role: Callable[[Thread], tuple[str, str]]
) -> dict[str, Any]:
    """`step_ms`: the median; `threads`: milliseconds a step by role and name, of workers the mean; `machine`: by kind."""
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


def markdown(result: Mapping[str, Any]) -> str:
    """The result as a page for docs/results."""
    ground, rounds = result["ground"], result["rounds"]
    ratios = [each["job"]["step_ms"] / each["floor"]["step_ms"] for each in rounds]
    lines = ["| a step, ms | median | least to most |", "|---|---:|---:|"]
    lines += [_line("a step", [each["job"]["step_ms"] for each in rounds])]
    lines += [_line("without communication", [each["floor"]["step_ms"] for each in rounds])]
    lines += [_line("the one over the other", ratios, digits=3)]
    for contender, title in (("job", ""), ("floor", " without communication")):
        threads_of = [each[contender]["threads"] for each in rounds]
        for kind, names in threads_of[0].items():
            article = "the master" if kind == "master" else "a worker"
            lines += [_line(f"{article}{title}, {name}", [found[kind].get(name, 0.0) for found in threads_of]) for name in names]
    for kind in rounds[0]["job"]["machine"]:
        spent = [each["job"]["machine"][kind] for each in rounds]
        lines += [_line(f"the machine, {kind}", spent)] if max(spent) >= 1 else []
    head = f"{result['date']}, {result['cpu']}, {result['cores']} cores; {ground['network']}, {ground['workers']} workers x "
    head += f"{ground['batch']}, `--scheme {result['scheme']}`, shared memory; {len(rounds)} rounds of {ground['steps']} steps."
    return f"{head}\n\n" + "\n".join(lines) + "\n"


def _line(name: str, values: Sequence[float], digits: int = 1) -> str:
    low, high = min(values), max(values)
    return f"| {name} | {statistics.median(values):.{digits}f} | {low:.{digits}f} to {high:.{digits}f} |"


def main(
    *,
    network: str,
    dataset: str,
    data_dir: Path | None,
    workers: int,
    batch_size: int,
    lr: float,
    seed: int,
    scheme: str,
    steps: int,
    warmup: int,
    rounds: int,
    json_file: Path | None,
) -> int:
    """Measure, print the table, write it as JSON; the exit code."""
    from psnode.tasks.classification import Classification

    directory = None if data_dir is None else str(data_dir.expanduser().absolute())
    Classification(network, dataset, directory)
    ground = Ground(
        network=network, dataset=dataset, data_dir=directory, workers=workers, batch=batch_size, lr=lr, seed=seed,
        steps=warmup + steps + _AFTER,
    )  # fmt: skip
    result = run(ground, scheme, warmup=warmup, rounds=rounds, tell=lambda line: print(line, file=sys.stderr, flush=True))
    print(markdown(result))
    save(result, json_file)
    return os.EX_OK
