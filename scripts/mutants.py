"""Change the code slightly and check if tests fail: scripts/mutants.py [--seed S] [--count N] [--results FILE] [ID ...]

A mutant is this checkout with one small change of meaning. Mutants are drawn with the seed from all places in psnode/codecs,
feedback, exchange, master, worker and records at which an operator of mutants_places.py applies. Each of these six packages gets
an equal share.

For every mutant, the tests of its module (by the table in mutants_tests.py) run in a copy of the tree. A failing test kills the
mutant if it fails once more when run by itself, and passes without the mutant. Otherwise this test is skipped and reported, and
the other tests decide. A mutant that takes longer than --timeout counts as killed too, and is listed as timeout. --results: a
file with a line per mutant. Mutants in the file are not run again, unless the source file that they change has changed. --skip:
tests to leave out on a busy machine. Kernels that a mutant does not reach are used as compiled in this checkout
(mutants_compiled.py), so run the tests of the checkout first. ID: test only these mutants. --list: only print the drawn
mutants.

The exit code is 0 if at least the share --goal of the mutants was killed.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts")]
from mutants_compiled import Compiled  # noqa: E402
from mutants_places import Mutant, candidates, draw  # noqa: E402
from mutants_tests import chosen, tests_of  # noqa: E402

AREAS = ("psnode/codecs", "psnode/feedback", "psnode/exchange", "psnode/master", "psnode/worker", "psnode/records")
OUTSIDE = (".git", ".venv*", "*.pyc", "*.egg-info", "build", "dist", "runs", ".*_cache", ".hypothesis", ".cache")
_FAILED = ("FAILED ", "ERROR ")
_NO_TESTS = 5  # pytest's exit code if no test is selected


@dataclass(frozen=True)
class Result:
    """The result of a mutant: killed, survived or timeout.

    `source`: a digest of the file that the mutant changes.
    """

    id: str
    old: str
    new: str
    outcome: str
    seconds: float
    source: str
    by: str = ""


class Copy:
    """A copy of the tree and its caches, in which mutants are tested one after another."""

    def __init__(self, root: Path, folder: Path, timeout: float, skip: str) -> None:
        self.root = folder / "tree"
        self._skip = skip.split(",")
        self._timeout = timeout
        self._compiled = Compiled(self.root)
        self._sound: dict[str, bool] = {}
        self._server: subprocess.Popen[bytes] | None = None
        shutil.copytree(root, self.root, ignore=shutil.ignore_patterns(*OUTSIDE))

    def run(self, tests: Sequence[str], without: Sequence[str] = (), only: Sequence[str] = ()) -> tuple[str, str]:
        """Run `tests` except `without`.

        Return passed, failed or timeout, and the name of the first failed test, if any. `only`: further pytest arguments.
        """
        long = ["--long"] if (self.root / "tests" / "conftest.py").exists() else []  # an option of psnode's own conftest.py
        arguments = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", *long, *tests, *only]
        code, out = self._pytest([*arguments, *(f"--deselect={test}" for test in without)])
        if code in (0, _NO_TESTS):
            return "passed", ""
        if code is None:
            return "timeout", ""
        lines = [line.split(" - ")[0] for line in out.splitlines() if line.startswith(_FAILED)]
        return "failed", lines[0].split(" ", 1)[1] if lines else ""

    def _pytest(self, arguments: Sequence[str]) -> tuple[int | None, str]:
        """Run pytest with `arguments`. Return its exit code (None after the timeout) and its output."""
        log = self.root.parent / "log"
        server = self._server = self._server or self._start()
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps({"arguments": arguments, "out": str(log)}).encode() + b"\n")
        group = int(server.stdout.readline())
        try:
            late = not select.select([server.stdout], [], [], self._timeout)[0]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        code = int(server.stdout.readline())
        return None if late else code, log.read_text(errors="replace")

    def _start(self) -> subprocess.Popen[bytes]:
        env = {**os.environ, "PYTHONPATH": str(self.root), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", str(ROOT / "scripts/mutants_server.py")]
        return subprocess.Popen(command, cwd=self.root, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def close(self) -> None:
        """End the process that runs the tests."""
        if self._server is not None:
            self._server.communicate()

    def judge(self, mutant: Mutant) -> Result:
        """Apply the mutant, run its module's tests, and undo the mutant. Return the result."""
        tests = [test for test in tests_of(mutant.path) if (self.root / test.split("::")[0]).exists()]
        tests = [test for test in tests if not any(fnmatchcase(test, pattern) for pattern in self._skip)]
        if not tests:
            raise SystemExit(f"no test of {mutant.path} is there")
        source = (self.root / mutant.path).read_bytes()
        before = time.monotonic()
        passed_over: list[str] = []
        while True:
            with self._in_place(mutant):
                outcome, by = self.run(tests, passed_over, chosen(mutant.path))
                again = outcome == "failed" and self.run([by] if by else tests)[0] != "passed"
            if outcome != "failed" or (again and self._is_sound(by, tests)):
                break
            passed_over.append(by)
        fate = {"passed": "survived", "failed": "killed", "timeout": "timeout"}[outcome]
        seconds = round(time.monotonic() - before, 1)
        told = by if outcome == "failed" else " ".join(["passed over:", *passed_over]) if passed_over else ""
        return Result(mutant.id, mutant.old, mutant.new, fate, seconds, digest(source), told)

    @contextlib.contextmanager
    def _in_place(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.path
        source, stamp = path.read_bytes(), path.stat()
        with self._compiled.without(mutant.path, int(mutant.id.split(":")[1])):
            path.write_bytes(mutant.applied(source))
            try:
                yield
            finally:
                path.write_bytes(source)
                os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # make the caches of this file valid again

    def _is_sound(self, test: str, tests: Sequence[str]) -> bool:
        """Return True if `test` passes without a mutant. If no test is named, run all of `tests`.

        Raises SystemExit if `tests` fail together, without a mutant, and pytest names no failed test.
        """
        if test not in self._sound:
            self._sound[test] = self.run([test] if test else tests)[0] == "passed"
        if not test and not self._sound[test]:
            raise SystemExit(f"without a mutant {' '.join(tests)} fail, and pytest does not say which")
        return self._sound[test]


def digest(source: bytes) -> str:
    """Return a short digest of a file's content."""
    return hashlib.sha256(source).hexdigest()[:16]


def known(results: Path | None) -> dict[str, Result]:
    """Return the results in the file `results` by mutant id. If several lines have the same id, the last one counts."""
    if results is None or not results.exists():
        return {}
    lines = results.read_text().splitlines(keepends=True)
    return {found.id: found for line in lines if line.endswith("\n") for found in [Result(**json.loads(line))]}


def judged(root: Path, drawn: Sequence[Mutant], results: Path | None, timeout: float, skip: str) -> Iterator[Result]:
    """Yield the results of the mutants `drawn`.

    Results that are already in the file `results` come first, if their source files have not changed.
    """
    before = known(results)
    sources = {mutant.path: digest((root / mutant.path).read_bytes()) for mutant in drawn}
    left = [m for m in drawn if m.id not in before or before[m.id].source != sources[m.path]]
    yield from (before[mutant.id] for mutant in drawn if mutant not in left)
    if not left:
        return
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, contextlib.ExitStack() as stack:
        tree = stack.enter_context(contextlib.closing(Copy(root, Path(folder), timeout, skip)))
        for mutant in left:
            result = tree.judge(mutant)
            if results is not None:
                with results.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
            yield result


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw mutants, run their tests, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--areas", default=",".join(AREAS), help="files and folders to draw from, separated by commas")
    parser.add_argument("--results", type=Path, help="a file of JSON lines: read first, then added to")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--skip", default="", metavar="PATTERN,...", help="tests, such as tests/mpi/*")
    parser.add_argument("--goal", type=float, default=0.95, help="the share that must be killed")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree that is changed")
    parser.add_argument("id", nargs="*", help="PATH:LINE:COLUMN+BYTES:OPERATOR")
    args = parser.parse_args(arguments)
    areas = args.areas.split(",")
    if args.id:
        every = {mutant.id: mutant for area in areas for mutant in candidates(args.root, area)}
        if unknown := [name for name in args.id if name not in every]:
            parser.error(f"there is no mutant {unknown[0]}")
        drawn = [every[name] for name in args.id]
    else:
        drawn = draw(args.root, areas, args.seed, args.count)
    if args.list:
        for mutant in drawn:
            print(f"{mutant.id}  {mutant.old}  ->  {mutant.new}  [{' '.join(tests_of(mutant.path))}]")
        return 0
    killed = total = 0
    for result in judged(args.root, drawn, args.results, args.timeout, args.skip):
        total += 1
        killed += result.outcome != "survived"
        print(
            f"{result.outcome:8}  {result.seconds:6.1f} s  {result.id}  {result.old}  ->  {result.new}  {result.by}", flush=True
        )
    print(f"{killed} of {total} killed ({100 * killed / max(1, total):.0f} %)")
    return 0 if killed >= args.goal * total else 1


if __name__ == "__main__":
    sys.exit(main())
