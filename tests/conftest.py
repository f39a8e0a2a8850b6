"""Configuration of all tests: settings without environment variables, hypothesis without deadlines, groups
and samples of tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
import xxhash
from hypothesis import settings

from tests.costs import Costs
from tests.forking import FORKING

os.environ.setdefault("OMP_NUM_THREADS", "1")  # set before torch is imported: several test processes share few cores
settings.register_profile("psnode", deadline=None, print_blob=True)
settings.load_profile("psnode")

# a background job of a shell ignores SIGINT, and processes of the tests would inherit this
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup ignores SIGHUP
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

ROOT = Path(__file__).resolve().parents[1]
T = TypeVar("T")
SERIAL, JOBS = "serial", "jobs"
SAMPLED, SWEEP = 5, 30
GROUPS = {
    "net": SERIAL,
    "mpi": JOBS,
    "slurm": JOBS,
}  # pytest-xdist never runs two tests of one group at once: tests in these folders start jobs of several processes
_FIRST = {SERIAL: 0, JOBS: 1}  # the groups that take longest begin first


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options --codec FILE:NAME (test only the named codecs in tests/codecs/test__*.py), --long (run all cases) and
    --sample (the seed of the sample).
    """
    parser.addoption("--codec", action="append", default=[], metavar="SPEC", help="subject of tests/codecs/test__*.py; repeat")
    parser.addoption("--long", action="store_true", help="run all long tests and sweeps, not one in SAMPLED")
    parser.addoption("--sample", type=int, default=0, metavar="SEED", help="which of them run without --long")


def pytest_configure(config: pytest.Config) -> None:
    """Load the codecs given by --codec before the tests are collected, and register the plugin that counts the costs of tests."""
    config.pluginmanager.register(Costs(), "costs")
    if specs := config.getoption("--codec"):
        from psnode.codecs.registry import load_codec
        from tests.codecs import family

        family.FILES[:] = specs
        family.CHOSEN[:] = [load_codec(spec) for spec in specs]


def pytest_unconfigure() -> None:
    """Stop the server of forks."""
    FORKING.close()


def is_sampled(name: str, seed: int) -> bool:
    """Return True for one in SAMPLED test cases, chosen by a hash of the test's name and `seed`."""
    return _hash(name, seed) % SAMPLED == 0


def _hash(name: str, seed: int) -> int:
    return int(xxhash.xxh3_64_intdigest(name.encode(), seed=seed))


def sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all cases of the sweeps except a sample of each, and all tests with the mark `long` except a sample of them.
    With --long or --codec, no test is deselected.

    A sweep is a test over codecs (tests/codecs/test__*.py) with at least SWEEP cases, or a test with the mark `sweep`. If the
    command line names files, the mark `long` is ignored.
    """
    if config.getoption("--long") or config.getoption("--codec"):
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        over_codecs = item.path.parent.name == "codecs" and item.path.name.startswith("test__")
        if over_codecs or item.get_closest_marker("sweep"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    seed = config.getoption("--sample")
    sweeps = [found for found in cases.values() if len(found) >= SWEEP or found[0].get_closest_marker("sweep")]
    files = any("::" in argument or argument.endswith(".py") for argument in config.args)
    long = set() if files else {item for item in items if item.get_closest_marker("long")}
    left = {item for found in sweeps for item in found if not is_sampled(item.nodeid, seed)}
    left -= {min(found, key=lambda item: _hash(item.nodeid, seed)) for found in sweeps if left.issuperset(found)}  # at least one
    left |= {item for item in long if not is_sampled(item.nodeid, seed)}
    if left:
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Assign tests to groups, and sample the sweeps and the long tests.

    With --dist loadgroup, each group runs on one worker of pytest-xdist. Tests that start jobs of several processes are
    divided into the groups SERIAL and JOBS: while the ranks of a job of one group wait, a job of the other keeps the cores
    busy. The tests in JOBS check only results, not timing. Every other file is a group of its own, so that only one process
    makes its fixtures and compiles its kernels.
    """
    sample(config, items)
    groups = {item: _group(item) for item in items}
    for item, group in groups.items():
        if group in _FIRST or not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(group))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _FIRST.get(groups[item], len(_FIRST)))


def _group(item: pytest.Item) -> str:
    """Return the group of a test: SERIAL, JOBS, or its file."""
    path = item.path.relative_to(ROOT / "tests")
    return GROUPS.get(path.parts[0], SERIAL if item.get_closest_marker("serial") else str(path))


def pytest_collection_finish() -> None:
    """Exempt the collected tests, about a million objects, from searches by the garbage collector and by psnode."""
    _freeze()


@pytest.fixture
def sampled(request: pytest.FixtureRequest) -> Callable[[Sequence[T]], list[T]]:
    """Return the function `sampled(cases)`. It returns all cases with --long, otherwise one in SAMPLED, always including the
    first and the last.
    """
    config = request.config

    def choose(cases: Sequence[T]) -> list[T]:
        if config.getoption("--long") or len(cases) <= SAMPLED:
            return list(cases)
        return [*cases[:1], *cases[1 + config.getoption("--sample") % SAMPLED : -1 : SAMPLED], *cases[-1:]]

    return choose


def _freeze() -> None:
    """Exempt all living objects from later searches, which would otherwise take longer with every module of tests:
    psnode.worker.idle_optimizers visits each object that gc.get_objects() returns.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _free_memory() -> Iterator[None]:
    """Return freed memory to the system after each module of tests: a run in this process tells glibc to keep it
    (psnode.worker.malloc).
    """
    yield
    _freeze()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in os.environ:
        if variable.startswith("PSNODE_"):
            monkeypatch.delenv(variable)


@pytest.fixture(autouse=True)
def _nothing_compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide from psnode.worker.inspection the functions that earlier tests of this process have compiled or scripted.
    Otherwise a run in this process would wait for all weights, and a profile would be refused.
    """
    if (torch := sys.modules.get("torch")) is None:
        return
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is not None and dynamo.counters:
        torch._dynamo.reset()
        dynamo.counters.clear()
    if earlier := {function.name for function in torch.jit._state._python_cu.get_functions()}:
        from psnode.worker import inspection

        scripted_functions = inspection.scripted_functions
        monkeypatch.setattr(inspection, "scripted_functions", lambda: scripted_functions() - earlier)


@contextlib.contextmanager
def forgetting_codecs() -> Iterator[None]:
    """Remove the codecs that were registered inside the `with` block."""
    from psnode.codecs import registry, table

    tables = table._OUTSIDE, table.NAMES
    before = [dict(each) for each in tables]
    yield
    if [dict(each) for each in tables] != before:
        for each, kept in zip(tables, before, strict=True):
            each.clear()
            each.update(kept)
        registry._loaded.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def _codecs_of_a_module() -> Iterator[None]:
    """Remove the codecs that fixtures of the module registered, which tests of all codecs would find."""
    with forgetting_codecs():
        yield


@pytest.fixture(autouse=True)
def _codecs_of_a_test() -> Iterator[None]:
    """Remove the codecs that the test registered."""
    with forgetting_codecs():
        yield


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make psnode's own functions start forks (tests.forking) instead of interpreters."""
    python, variables = FORKING.launching()
    monkeypatch.setattr(sys, "executable", python)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


class Finished(NamedTuple):
    """The result of a command: exit code and output."""

    code: int
    out: str
    err: str


@pytest.fixture
def psnode(tmp_path: Path) -> Callable[..., Finished]:
    """Return a function that runs `python -m psnode ARGS` in a new process (tests.forking), in an empty directory."""

    def run(*args: str | Path, env: Mapping[str, str] | None = None, timeout: float = 300.0) -> Finished:
        done = subprocess.run(
            [FORKING.python(), "-m", "psnode", *map(str, args)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return run
