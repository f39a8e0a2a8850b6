"""Places at which mutants.py can change the code slightly: the operators, all places where they apply, and draws by seed.

    sign        a + b, a - b, a += b, a -= b: the other sign; -a: without the sign
    factor      a * b, a / b, a *= b, a /= b: without b
    one-off     a whole number: one more
    compare     <, <=, >, >=: with or without the equal case; ==, !=, is, is not, in, not in: the opposite
    logic       and, or: replaced by each other; not a: a
    extreme     min, max: replaced by each other; amin, amax, minimum, maximum, argmin, argmax too
    count       a number of workers (workers, len(live), ...) or a rank (rank, sender, source): one more
    stale       a version or step: one less
    skip        a call whose value is unused, or an augmented assignment: left out (a residual, an fsync, a release, ...)

Messages of exceptions, type hints, docstrings and decorators are not changed.
"""

from __future__ import annotations

import ast
import copy
import functools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """A change of the code: `new` replaces the bytes `start` to `stop` of the file `path`.

    `id` names the place and the operator.
    """

    id: str
    path: str
    start: int
    stop: int
    old: str
    new: str

    def applied(self, source: bytes) -> bytes:
        """Return `source` with the change."""
        return source[: self.start] + self.new.encode() + source[self.stop :]


class Places(ast.NodeVisitor):
    """Visitor that collects the mutants of one file."""

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
        """Visit bodies and defaults, but no annotations and no decorators."""
        for part in (*node.args.defaults, *(d for d in node.args.kw_defaults if d), *node.body):
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit only the value of the assignment, not its annotation."""
        if node.value is not None:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Visit nothing, since few tests read error messages."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Visit nothing, since few tests read formatted texts."""

    def visit_If(self, node: ast.If) -> None:
        """Visit everything, except imports that are only for annotations (if TYPE_CHECKING)."""
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> None:
        """Visit the subject and the bodies, but not the patterns, which are not expressions."""
        self.visit(node.subject)
        for case in node.cases:
            for part in case.body:
                self.visit(part)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Visit everything, except type hints in expressions, such as list[int]()."""
        if not (isinstance(node.value, ast.Name) and node.value.id in ("list", "dict", "set", "tuple", "Callable", "deque")):
            self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Add a mutant of the operator sign or factor."""
        if isinstance(node.op, ast.Add | ast.Sub) and not isinstance(node.left, ast.Constant | ast.JoinedStr | ast.List):
            changed = copy.copy(node)
            changed.op = ast.Sub() if isinstance(node.op, ast.Add) else ast.Add()
            self._add(node, "sign", changed)
        elif isinstance(node.op, ast.Mult | ast.Div) and not _names_file(node):
            self._add(node, "factor", node.left)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Add mutants of the operators sign, factor or skip."""
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
        """Add a mutant of the operator sign or logic."""
        if isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            self._add(node, "sign", node.operand)
        elif isinstance(node.op, ast.Not):
            self._add(node, "logic", node.operand)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Add a mutant of the operator one-off for a whole number."""
        if type(node.value) is int:
            self._add(node, "one-off", str(node.value + 1))

    def visit_Compare(self, node: ast.Compare) -> None:
        """Add a mutant of the operator compare for each comparison."""
        for index, operator in enumerate(node.ops):
            changed = copy.copy(node)
            changed.ops = [*node.ops]
            changed.ops[index] = _COMPARISONS[type(operator)]()
            self._add(node, f"compare{index or ''}", changed)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Add a mutant of the operator logic."""
        changed = copy.copy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, "logic", changed)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Add a mutant of the operator extreme, or of the operator count if the call returns a number of workers."""
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
        """Add a mutant of the operator count or stale, if the name is one of theirs."""
        self._named(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Add a mutant of the operator count or stale, if the name is one of theirs."""
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
        """Add a mutant of the operator skip for a call. A docstring is not a call."""
        if isinstance(node.value, ast.Call):
            self._add(node, "skip", "pass")
        self.generic_visit(node)


def _names_file(node: ast.expr) -> bool:
    """Return True if `node` is a path: the leftmost operand of its slashes is a folder."""
    while isinstance(node, ast.BinOp):
        node = node.left
    return bool(_PATHS.fullmatch(ast.unparse(node)))


def candidates(root: Path, area: str) -> list[Mutant]:
    """Return all mutants of `area`, a file or a folder, file by file."""
    place = root / area
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    return [mutant for path in files for mutant in places(path.relative_to(root).as_posix(), path.read_bytes())]


@functools.cache
def places(path: str, source: bytes) -> tuple[Mutant, ...]:
    """Return the mutants of the file `path` with the content `source`."""
    return tuple(Places(path, source).found)


def draw(root: Path, areas: Sequence[str], seed: int, count: int) -> list[Mutant]:
    """Return `count` mutants, drawn from the areas in turn.

    A larger draw with the same seed begins with the mutants of a smaller draw.
    """
    rng = random.Random(seed)
    pools = [candidates(root, area) for area in areas]
    for pool in pools:
        rng.shuffle(pool)
    drawn: list[Mutant] = []
    while len(drawn) < count and any(pools):
        drawn += [pool.pop() for pool in pools if pool]
    return drawn[:count]
