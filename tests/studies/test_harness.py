"""The harness of studies, on a study of two rows: options, JSON, page, tables, an earlier result, refusals."""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from psnode.cli import main as psnode
from psnode.cli.bench import MOVED
from psnode.config.declaration import ABSENT, option
from psnode.errors import ConfigurationError
from studies.harness import Column, Found, Study, main

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.stem for path in (ROOT / "studies").glob("*.py") if "\nSTUDY = " in path.read_text())


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of the study below."""

    folder: Path = option(ABSENT, "Has to be given.")
    base: tuple[int, ...] = option((2, 3), "Repeat.", minimum=0, repeated=True, aliases=("-b",))
    word: tuple[str, ...] = option((), "May hold commas.", repeated=True)
    power: int = option(2, "Exponent.", minimum=0)


def measure(options: Options) -> Found:
    rows = [{"base": base, "value": base**options.power, "even": base % 2 == 0} for base in options.base]
    return Found(rows, {"total": sum(base**options.power for base in options.base)})


COLUMNS = (Column("base", "{base}"), Column("power", lambda row: f"{row['value']:.1f}"), Column("name", "n{base}", left=True))
STUDY = Study(
    Options, measure, COLUMNS, head=lambda result: f"Total {result['total']}.", passed=lambda found: found["total"] < 99
)
TABLE = "| base | power | name |\n|---:|---:|---|\n"


def test_an_iterator_of_rows_is_saved_after_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check the file of a study that fails after two rows: it shows these rows, sorted, and does not pass."""
    file = tmp_path / "a.json"

    def one_by_one(options: Options) -> Found:
        def rows() -> Iterator[dict[str, int]]:
            yield from measure(options).rows
            raise ConfigurationError("the machine went away")

        return Found(rows(), {"total": 5})

    broken = dataclasses.replace(STUDY, measure=one_by_one, order=lambda row: -row["base"])
    assert main(broken, ["--folder", "x", "--json", str(file)]) == 2
    assert "the machine went away" in capsys.readouterr().err
    assert [row["base"] for row in json.loads(file.read_bytes())["rows"]] == [3, 2]
    assert main(broken, ["--from", str(file)]) == 1
    shown = capsys.readouterr().out
    assert "The study was ended before its end." in shown
    assert shown.endswith(f"{TABLE}| 3 | 9.0 | n3 |\n| 2 | 4.0 | n2 |\n")


def test_the_page_has_hardware_head_and_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "new" / name for name in ("a.json", "a.md")]
    given = [
        "--folder",
        "x",
        "-b",
        "3",
        "--base",
        "5",
        "--word",
        "a:b=1,c=2",
        "--json",
        str(files[0]),
        "--markdown",
        str(files[1]),
    ]
    assert main(STUDY, given) == 0
    result = json.loads(files[0].read_text())
    assert result["rows"] == [{"base": 3, "value": 9, "even": False}, {"base": 5, "value": 25, "even": False}]
    assert (result["folder"], result["base"], result["word"], result["total"]) == ("x", [3, 5], ["a:b=1,c=2"], 34)
    text = (
        f"{result['date']}, {result['cpu']}, {result['cores']} cores. Total 34.\n\n{TABLE}| 3 | 9.0 | n3 |\n| 5 | 25.0 | n5 |\n"
    )
    assert capsys.readouterr().out == files[1].read_text() == text
    assert main(STUDY, ["--from", str(files[0])]) == 0
    assert capsys.readouterr().out == text


def test_rows_of_one_value_are_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = dataclasses.replace(STUDY, tables="even", foot=lambda result: "Nothing more.")
    assert main(study, ["--folder", "x", "-b", "1", "-b", "2", "-b", "3"]) == 0
    parts = capsys.readouterr().out.partition("\n\n")[2]
    assert (
        parts == f"## False\n\n{TABLE}| 1 | 1.0 | n1 |\n| 3 | 9.0 | n3 |\n\n## True\n\n{TABLE}| 2 | 4.0 | n2 |\n\nNothing more.\n"
    )


def test_a_result_that_misses_its_bound_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(STUDY, ["--folder", "x", "--power", "5"]) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "--folder is missing: Has to be given."),
        (["--folder", "x", "-b", "-1"], "--base must be a whole number of at least 0"),
        (["--folder", "x", "--bas", "1"], "unknown option --bas"),
        (["--from", "none.json"], "--from none.json holds no such result"),
    ],
)
def test_a_refusal_is_one_line(given: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(STUDY, given) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.parametrize("content", ["", "{", "[]", '{"rows": [{}]}', '{"rows": 3}'])
def test_a_file_that_is_no_result_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    file = tmp_path / "found.json"
    file.write_text(content)
    assert main(STUDY, ["--from", str(file)]) == 2
    assert "holds no such result" in capsys.readouterr().err


@pytest.mark.parametrize("name", MOVED)
def test_bench_names_the_study_that_a_command_has_become(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = name.replace("-", "_")
    assert module in NAMES
    assert psnode(["bench", name]) == 2
    assert f"in a clone of psnode: python -m studies.{module}" in capsys.readouterr().err


def test_every_study_is_listed_with_its_first_sentence_and_ends_with_its_command() -> None:
    done = subprocess.run([sys.executable, "-m", "studies"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == NAMES
    for name in NAMES:
        tree = ast.parse((ROOT / "studies" / f"{name}.py").read_text())
        assert f"`python -m studies.{name}" in (ast.get_docstring(tree) or "").partition("\n")[0]
        assert ast.unparse(tree.body[-1]) == "if __name__ == '__main__':\n    sys.exit(main(STUDY))"


def test_a_study_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "studies.updates", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "Usage: python -m studies.updates [OPTIONS]" in done.stdout and "--optimizer sgd|momentum|adam|adamw" in done.stdout
