"""Change the code by a little and see if its tests notice: scripts/mutants.py [--seed S] [--count N] [--results FILE] [ID ...]

A mutant is this checkout with one small change of meaning, drawn by the seed from all places in psnode/codecs, feedback, master,
worker and checkpoint.py where one of these operators applies, an equal share from each of the five:

    sign        a + b, a += b: minus for plus, plus for minus; -a: without the sign
    factor      a * b, a / b, a *= b, a /= b: without b
    one-off     a whole number: one more
    compare     <, >: with the equal case; <=, >=: without it; ==, !=, is, is not, in, not in: the opposite
    logic       and, or: the other; not a: a
    extreme     min, max: the other; amin, amax, minimum, maximum, argmin, argmax too
    count       a number of workers (workers, len(live), ...) or a rank (rank, sender, source): one more
    stale       a version or step: one less
    skip        a call whose value nobody takes, or an augmented assignment: left out (a residual, an fsync, a release, ...)

Messages of exceptions, type hints, docstrings and decorators are passed over. Every mutant runs the tests of its module, by
the table in mutants_tests.py, in a copy of the tree with compiled kernels of its own; the same tests must pass there unchanged
first. A mutant that takes longer than --timeout is killed, too, and listed apart. --results: a line a mutant; those in there are
not run again, unless the file that they change is another by now. ID: run just these. --list: only say what was drawn.

The exit code is 0 if --goal of the mutants were killed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts")]
from mutants_tests import tests_of  # noqa: E402

AREAS = ("psnode/codecs", "psnode/feedback", "psnode/master", "psnode/worker", "psnode/checkpoint.py")
OUTSIDE = (".git", ".venv*", "__pycache__", "*.egg-info", "build", "dist", "runs", "data", ".*_cache", ".hypothesis", ".cache")
_COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_EXTREMES = {a + b: a + c for a in ("", "a", "arg") for b, c in (("min", "max"), ("max", "min"))}
_EXTREMES |= {"minimum": "maximum", "maximum": "minimum"}
_COUNTS = re.compile(r"(.*\.)?_?(workers|rank|sender|source|contributors)|(.*\.)?transport\.size")
_STALE = re.compile(r"(.*\.)?_?(version|step|based)")
_PATHS = re.compile(r"(.*[._])?(path|paths|dir|directory|root|folder)")


@dataclass(frozen=True)
class Mutant:
    """`new` in the place of the bytes `start` to `stop` of `path`; `id` names place and operator."""

    id: str
    path: str
    start: int
    stop: int
    old: str
    new: str

    def applied(self, source: bytes) -> bytes:
        """`source` with the change."""
        return source[: self.start] + self.new.encode() + source[self.stop :]


@dataclass(frozen=True)
class Result:
    """The fate of a mutant: killed, survived or timeout. `source` is a digest of the file that it changes."""

    id: str
    old: str
    new: str
    outcome: str
    seconds: float
    source: str
    by: str = ""


class Places(ast.NodeVisitor):
    """Collects the mutants of one file."""

    def __init__(self, path: str, source: bytes) -> None:
        self.found: list[Mutant] = []
        self._path, self._source = path, source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self.visit(ast.parse(source))

    def _add(self, node: ast.expr | ast.stmt, operator: str, new: ast.AST | str) -> None:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._lines[node.lineno - 1] + node.col_offset
        stop = self._lines[node.end_lineno - 1] + node.end_col_offset
        old = self._source[start:stop].decode()
        text = new if isinstance(new, str) else ast.unparse(new)
        place = f"{self._path}:{node.lineno}:{node.col_offset}+{stop - start}:{operator}"
        if isinstance(node, ast.expr):
            text = f"({text})"
        self.found.append(Mutant(place, self._path, start, stop, " ".join(old.split()), text))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Bodies and defaults; no annotations, no decorators."""
        for part in (*node.args.defaults, *(d for d in node.args.kw_defaults if d), *node.body):
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Only the value."""
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Nothing: what an error says is tested by few."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Nothing: the same."""

    def visit_If(self, node: ast.If) -> None:
        """All but what only type checkers read."""
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> None:
        """The bodies: a pattern is no expression."""
        self.visit(node.subject)
        for case in node.cases:
            for part in case.body:
                self.visit(part)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """All but type hints in expressions, such as list[int]()."""
        if not (isinstance(node.value, ast.Name) and node.value.id in ("list", "dict", "set", "tuple", "Callable", "deque")):
            self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """sign and factor."""
        if isinstance(node.op, ast.Add | ast.Sub) and not isinstance(node.left, ast.Constant | ast.JoinedStr | ast.List):
            changed = copy.copy(node)
            changed.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            self._add(node, "sign", changed)
        elif isinstance(node.op, ast.Mult | ast.Div) and not _names_file(node):
            self._add(node, "factor", node.left)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """sign, factor and skip."""
        target = ast.unparse(node.target)
        if isinstance(node.op, ast.Add | ast.Sub):
            operator = "-" if isinstance(node.op, ast.Add) else "+"
            self._add(node, "sign", f"{target} {operator}= {ast.unparse(node.value)}")
        if isinstance(node.op, ast.Mult | ast.Div):
            self._add(node, "factor", "pass")
        else:
            self._add(node, "skip", "pass")
        self.visit(node.value)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """sign and logic."""
        if isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            self._add(node, "sign", node.operand)
        elif isinstance(node.op, ast.Not):
            self._add(node, "logic", node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """one-off."""
        if type(node.value) is int:
            self._add(node, "one-off", str(node.value + 1))

    def visit_Compare(self, node: ast.Compare) -> None:
        """compare."""
        for index, operator in enumerate(node.ops):
            changed = copy.copy(node)
            changed.ops = [*node.ops]
            changed.ops[index] = _COMPARISONS[type(operator)]()
            self._add(node, f"compare{index or ''}", changed)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """logic."""
        changed = copy.copy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, "logic", changed)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """extreme, and count for a length."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _EXTREMES:
            changed = copy.copy(node)
            if isinstance(node.func, ast.Attribute):
                changed.func = ast.Attribute(node.func.value, _EXTREMES[name])
            else:
                changed.func = ast.Name(_EXTREMES[name])
            self._add(node, "extreme", changed)
        if name == "len" and re.search(r"workers|live|ranks|contributors|added", ast.unparse(node)):
            self._add(node, "count", f"{ast.unparse(node)} + 1")
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        """count and stale."""
        self._named(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """count and stale."""
        self._named(node)
        self.visit(node.value)

    def _named(self, node: ast.Name | ast.Attribute) -> None:
        name = ast.unparse(node)
        if isinstance(node.ctx, ast.Load):
            if _COUNTS.fullmatch(name):
                self._add(node, "count", f"{name} + 1")
            elif _STALE.fullmatch(name):
                self._add(node, "stale", f"{name} - 1")

    def visit_Expr(self, node: ast.Expr) -> None:
        """skip; docstrings are passed over."""
        if isinstance(node.value, ast.Call):
            self._add(node, "skip", "pass")
        self.generic_visit(node)


def _names_file(node: ast.expr) -> bool:
    """Whether this is a path, with a folder to the left of its first slash."""
    while isinstance(node, ast.BinOp):
        node = node.left
    return bool(_PATHS.fullmatch(ast.unparse(node)))


def candidates(root: Path, area: str) -> list[Mutant]:
    """All mutants of an area, file by file."""
    place = root / area
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    return [mutant for path in files for mutant in Places(path.relative_to(root).as_posix(), path.read_bytes()).found]


def draw(root: Path, areas: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """`count` mutants, from one area after the other: of a smaller draw with the same seed these are a continuation."""
    rng = random.Random(seed)
    pools = [candidates(root, area) for area in areas]
    for pool in pools:
        rng.shuffle(pool)
    drawn: list[Mutant] = []
    while len(drawn) < count and any(pools):
        drawn += [pool.pop() for pool in pools if pool]
    return drawn[:count]


class Copy:
    """A copy of the tree where mutants live one after the other, with a cache of compiled kernels of its own."""

    def __init__(self, root: Path, folder: Path, timeout: float) -> None:
        self.root = folder / "tree"
        self._timeout = timeout
        self._caches = folder
        self._sound: dict[tuple[str, ...], bool] = {}
        shutil.copytree(root, self.root, ignore=shutil.ignore_patterns(*OUTSIDE))

    def run(self, tests: Sequence[str], cache: str, timeout: float) -> tuple[str, str]:
        """Outcome of `tests` in the copy as it is now (passed, failed or timeout), and the first test that failed."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
        env = {**os.environ, "PYTHONPATH": str(self.root), "NUMBA_CACHE_DIR": str(self._caches / cache)}
        process = subprocess.Popen(
            command, cwd=self.root, env={**env, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            return "timeout", ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        first = next((line.split(" - ")[0] for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
        return ("passed", "") if process.returncode == 0 else ("failed", first or out.strip().splitlines()[-1:][0])

    def check(self, tests: Sequence[str]) -> None:
        """Tests that fail without a mutant say nothing: SystemExit."""
        if tuple(tests) not in self._sound:
            outcome, first = self.run(tests, "kernels", 4 * self._timeout)
            if outcome != "passed":
                raise SystemExit(f"without a mutant {' '.join(tests)}: {outcome} {first}")
            self._sound[tuple(tests)] = True

    def judge(self, mutant: Mutant) -> Result:
        """Put the mutant in place, run its module's tests, and take it out again."""
        tests = [test for test in tests_of(mutant.path) if (self.root / test.split("::")[0]).exists()]
        if not tests:
            raise SystemExit(f"no test of {mutant.path} is there")
        self.check(tests)
        path = self.root / mutant.path
        source = path.read_bytes()
        before = time.monotonic()
        path.write_bytes(mutant.applied(source))
        cache = "kernels"
        if b"kernels.jit import" in source or b"from numba" in source:  # all kernels are compiled anew: for this mutant alone
            cache = "mutated"
        try:
            outcome, by = self.run(tests, cache, self._timeout)
        finally:
            path.write_bytes(source)
            shutil.rmtree(self._caches / "mutated", ignore_errors=True)
        fate = {"passed": "survived", "failed": "killed", "timeout": "timeout"}[outcome]
        seconds = round(time.monotonic() - before, 1)
        return Result(mutant.id, mutant.old, mutant.new, fate, seconds, digest(source), by)


def digest(source: bytes) -> str:
    """A short digest of a file."""
    return hashlib.sha256(source).hexdigest()[:16]


def known(results: Path | None) -> dict[str, Result]:
    """What the results hold, by the mutant's id; of several lines the last counts."""
    if results is None or not results.exists():
        return {}
    lines = results.read_text().splitlines(keepends=True)
    return {found.id: found for line in lines if line.endswith("\n") for found in [Result(**json.loads(line))]}


def judged(root: Path, drawn: Sequence[Mutant], results: Path | None, timeout: float) -> Iterator[Result]:
    """The fates of `drawn`, those that are known and are still true first."""
    before = known(results)
    sources = {mutant.path: digest((root / mutant.path).read_bytes()) for mutant in drawn}
    left = [m for m in drawn if m.id not in before or before[m.id].source != sources[m.path]]
    yield from (before[mutant.id] for mutant in drawn if mutant not in left)
    if not left:
        return
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Copy(root, Path(folder), timeout)
        for mutant in left:
            result = tree.judge(mutant)
            if results is not None:
                with results.open("a") as file:
                    file.write(json.dumps(asdict(result)) + "\n")
            yield result


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--areas", default=",".join(AREAS), help="files and folders to draw from, separated by commas")
    parser.add_argument("--results", type=Path, help="a file of JSON lines: read first, then added to")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS")
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
    for result in judged(args.root, drawn, args.results, args.timeout):
        total += 1
        killed += result.outcome != "survived"
        print(
            f"{result.outcome:8}  {result.seconds:6.1f} s  {result.id}  {result.old}  ->  {result.new}  {result.by}", flush=True
        )
    print(f"{killed} of {total} killed ({100 * killed / max(1, total):.0f} %)")
    return 0 if killed >= args.goal * total else 1


if __name__ == "__main__":
    sys.exit(main())
