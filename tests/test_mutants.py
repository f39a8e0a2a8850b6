"""The tool that makes small changes to the code: its operators, its random draw, and two mutants of a small tree."""

from __future__ import annotations

import ast
import fnmatch
import subprocess
import sys
from pathlib import Path

import pytest

from psnode.codecs import available

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts")]
import mutants  # noqa: E402
import mutants_compiled  # noqa: E402
import mutants_places  # noqa: E402
import mutants_tests  # noqa: E402

OPERATORS = [
    ("x = a + b", {("sign", "(a - b)")}),
    ("a -= b", {("sign", "a += b"), ("skip", "pass")}),
    ("x = -a", {("sign", "(a)")}),
    ("x = a * b", {("factor", "(a)")}),
    ("a /= b", {("factor", "pass")}),
    ("x = 7", {("one-off", "(8)")}),
    ("x = a < b", {("compare", "(a <= b)")}),
    ("x = a is not None", {("compare", "(a is None)")}),
    ("x = a <= b < c", {("compare", "(a < b < c)"), ("compare1", "(a <= b <= c)")}),
    ("x = a and not b", {("logic", "(a or not b)"), ("logic", "(b)")}),
    ("x = np.minimum(a, b)", {("extreme", "(np.maximum(a, b))")}),
    ("x = f(workers)", {("count", "(workers + 1)")}),
    ("x = len(self.live)", {("count", "(len(self.live) + 1)")}),
    ("x = self._version", {("stale", "(self._version - 1)")}),
    ("residual.add(a)", {("skip", "pass")}),
    ('"""No + b."""', set()),
    ("raise ValueError(a + 1)", set()),
    ("def f(x: list[a + b]) -> None: ...", set()),
    ('x = f"{a + b}"', set()),
    ("x = train_dir / name / CHECKPOINTS", set()),
]


@pytest.mark.parametrize(("source", "expected"), OPERATORS, ids=[source for source, _ in OPERATORS])
def test_an_operator_changes_what_it_says(source: str, expected: set[tuple[str, str]]) -> None:
    found = mutants_places.Places("file.py", source.encode()).found
    assert {(mutant.id.rsplit(":", 1)[1], mutant.new) for mutant in found} == expected


def test_a_change_replaces_its_own_bytes_and_no_others() -> None:
    source = "# Größe\ndef f(a, b):\n    return (a + b) * (b - a)  # µ\n"
    [product] = [m for m in mutants_places.Places("file.py", source.encode()).found if m.id.endswith("factor")]
    assert product.applied(source.encode()).decode() == source.replace("(a + b) * (b - a)", "(a + b)")


def test_every_row_of_the_table_is_of_a_module() -> None:
    names = [path.relative_to(ROOT / "psnode").as_posix() for path in (ROOT / "psnode").rglob("*.py")]
    assert [pattern for pattern in mutants_tests.TABLE if not fnmatch.filter(names, pattern)] == []


def test_every_module_has_tests_which_are_there() -> None:
    for area in mutants.AREAS:
        for path in {mutant.path for mutant in mutants.candidates(ROOT, area)}:
            missing = [test for test in mutants_tests.tests_of(path) if not (ROOT / test.split("::")[0]).exists()]
            assert missing == [], path


def test_all_modules_of_an_area_are_drawn_from() -> None:
    """Check that areas are packages, so that code moved between files of a package stays in its area."""
    assert [area for area in mutants.AREAS if not (ROOT / area / "__init__.py").is_file()] == []
    drawn = {mutant.path.rsplit("/", 1)[1] for mutant in mutants.candidates(ROOT, mutants.AREAS[-1])}
    assert drawn >= {"checkpoint.py", "state_names.py", "retention.py", "staging.py", "tensorfile.py"}


def test_a_draw_is_the_seeds_and_begins_like_a_smaller_one() -> None:
    drawn = mutants.draw(ROOT, mutants.AREAS, 7, 120)
    assert drawn[:60] == mutants.draw(ROOT, mutants.AREAS, 7, 60) != mutants.draw(ROOT, mutants.AREAS, 8, 60)
    assert len({mutant.id for mutant in drawn}) == 120
    for area in mutants.AREAS:
        assert sum(mutant.path.startswith(area) for mutant in drawn) == 20
    for mutant in drawn:
        source = (ROOT / mutant.path).read_bytes()
        assert ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source)), mutant.id


@pytest.mark.long
def test_what_tests_notice_is_killed_and_what_is_known_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that mutants which the tests notice are killed, and that known results are not computed again. The tests of this
    tree cover only the mean.
    """
    tree, results = tmp_path / "tree", tmp_path / "results.jsonl"
    for name, content in {
        "psnode/__init__.py": "",
        "psnode/records/__init__.py": "",
        "psnode/records/checkpoint.py": "def mean(total, count):\n    return total / count\n\n\n"
        "def rest(a, b):\n    return a - b\n",
        "tests/records/test_checkpoint.py": "from psnode.records.checkpoint import mean\n\n\n"
        "def test_mean():\n    assert mean(6, 2) == 3\n",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(content)
    given = ["--root", str(tree), "--areas", "psnode/records/checkpoint.py", "--results", str(results)]
    assert mutants.main(given) == 1
    told = sorted(capsys.readouterr().out.splitlines())
    assert told[0] == "1 of 2 killed (50 %)"
    assert (
        told[1].startswith("killed")
        and "2:11+13:factor  total / count  ->  (total)  tests/records/test_checkpoint.py::test_mean" in told[1]
    )
    assert told[2].startswith("survived") and "6:11+5:sign  a - b  ->  (a + b)" in told[2]
    content = results.read_text()
    assert mutants.main([*given, "--goal", "0.5"]) == 0
    assert (sorted(capsys.readouterr().out.splitlines()), results.read_text()) == (told, content)
    assert (tree / "psnode/records/checkpoint.py").read_text().count("total / count") == 1


@pytest.mark.long
def test_a_test_that_fails_without_the_mutant_too_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in {
        "psnode/__init__.py": "",
        "psnode/records/__init__.py": "",
        "psnode/records/checkpoint.py": "def mean(total, count):\n    return total / count\n",
        "tests/records/test_checkpoint.py": "from psnode.records.checkpoint import mean\n\n\n"
        "def test_mean():\n    assert mean(4, 2) == 3\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert mutants.main(["--root", str(tmp_path), "--areas", "psnode/records/checkpoint.py"]) == 1
    told = capsys.readouterr().out
    assert told.startswith("survived")
    assert "passed over: tests/records/test_checkpoint.py::test_mean" in told


def test_a_module_reaches_those_that_import_it_and_what_they_are_imported_by() -> None:
    found = mutants_compiled.reached(ROOT, "psnode/codecs/kernels/ties.py")
    assert {"psnode/codecs/kernels/ties.py", "psnode/codecs/kernels/qsgd_blocks.py", "psnode/codecs/qsgd.py"} <= found
    assert not {"psnode/codecs/kernels/threefry.py", "psnode/codecs/rng.py", "psnode/codecs/kernels/jit.py"} & found


def test_of_the_tests_of_all_codecs_a_codecs_module_runs_its_own() -> None:
    found = {path.stem: mutants_tests.chosen(path.relative_to(ROOT).as_posix()) for path in (ROOT / "psnode/codecs").glob("*.py")}
    assert {stem for stem, arguments in found.items() if arguments} == set(available())
    assert found["qsgd"] == ["-k", "not test__ or qsgd"]


def test_only_what_is_decorated_or_no_function_may_be_compiled() -> None:
    source = b"A = 1\n\n\n@kernel\ndef f():\n    return A\n\n\nclass B:\n    c = A\n\n    def g(self):\n        return A\n"
    assert [line for line in range(1, 14) if mutants_compiled.is_interpreted(source, line)] == [12, 13]
    instructions = b"from psnode.codecs.kernels.llvm.operations import load\n\n\ndef f(a):\n    return a\n"
    assert not any(mutants_compiled.is_interpreted(instructions, line) for line in range(1, 6))


def test_what_a_change_does_not_reach_stays_compiled(tmp_path: Path) -> None:
    """Check three kernels, one of which calls another: if the called one changes, two are compiled again, and the old caches
    are restored afterwards.
    """
    kernels = tmp_path / "tree/psnode/codecs/kernels"
    (kernels / "__pycache__").mkdir(parents=True)
    for name, content in {
        "jit": "from pathlib import Path\n\n\ndef sources() -> str:\n"
        "    return str(sum(path.stat().st_size for path in Path(__file__).parent.glob('[!j]*.py')))\n",
        "words": "",
        "calls": "from psnode.codecs.kernels.words import draw\n",
        "other": "",
    }.items():
        (kernels / f"{name}.py").write_text(content)
        (kernels / f"__pycache__/{name}.draw-7.py311.nbi").write_text(name)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in kernels.rglob("*.*")}

    def compiled() -> list[str]:
        return sorted(path.name.split(".")[0] for path in (kernels / "__pycache__").iterdir())

    def digest() -> str:
        command = [sys.executable, "-c", "from psnode.codecs.kernels.jit import sources; print(sources())"]
        return subprocess.run(command, cwd=tmp_path / "tree", capture_output=True, text=True, check=True).stdout

    expected = digest()
    with mutants_compiled.Compiled(tmp_path / "tree").without("psnode/codecs/kernels/words.py", 1):
        (kernels / "words.py").write_text("draw = 1\n")
        assert compiled() == ["jit", "other"]
        assert digest() == expected
        (kernels / "__pycache__/calls.draw-7.py311.nbi").write_text("with the change")
        (kernels / "words.py").write_text("")
    assert {path: path.read_bytes() for path in before} == {path: content for path, (content, _) in before.items()}
    assert (kernels / "jit.py").stat().st_mtime_ns == before[kernels / "jit.py"][1]
