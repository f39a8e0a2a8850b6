"""Commands and code in README and docs: all parse, and every page of results names the commands that made it."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import click
import pytest

from psnode.bench.convergence.equal_steps import named_runs
from psnode.cli import app
from psnode.config.load import load
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError
from psnode_ec2.cli import cli as ec2
from studies import harness

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RESULTS = [page for page in PAGES if page.parent.name == "results"]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)
PROGRAM = re.compile(r"(psnode|psnode-ec2|mpirun|python|pytest|scripts/\S+)(\s|$)")


def commands(text: str) -> list[str]:
    """Return the command lines that begin with one of our programs, with continued lines joined and trailing remarks removed."""
    blocks = [textwrap.dedent(block) for _, kind, block in FENCE.findall(text) if kind in ("", "bash")]
    plain = FENCE.sub("", text)
    blocks += [textwrap.dedent(found) for found in re.findall(r"(?:^    .*\n)+", plain, re.M)]
    joined = "\n".join(blocks).replace("\\\n", " ")
    found = [part.strip() for line in joined.split("\n") for part in line.split("&&")]
    return [re.split(r" {4,}(?=\w+ = )", line)[0] for line in found if PROGRAM.match(line)]


EVERY = [pytest.param(command, id=f"{page.name}: {command[:60]}") for page in PAGES for command in commands(page.read_text())]


# the tests that run the Python code of each page; the README's: test_readme.py
PYTHON = {
    "README.md": ["test_readme.py"],
    "data.md": ["test_own_data.py", "test_own_data.py"],
    "ddp.md": [*["test_page_code.py"] * 2, *["ddp/test_frameworks.py"] * 2, "test_page_code.py"],
    "models.md": ["test_page_code.py"],
    "optimising.md": ["test_page_code.py", "test_page_code.py", "test_page_code.py", "test_weighted_mean.py"],
    "own-loop.md": ["mpi/test_session.py", "jobs/test_session_alone.py"],
    "planning.md": ["jobs/planning/test_own_models.py"],
    "fine-tuning.md": ["mpi/test_finetune_examples.py"],
    "rows.md": ["rows/test_row_codec.py"],
    "ray.md": ["ddp/test_ray.py", "ddp/test_ray.py"],
}


def python_blocks(page: Path) -> list[str]:
    """Return the blocks of Python code in a page."""
    return [textwrap.dedent(block) for _, kind, block in FENCE.findall(page.read_text()) if kind == "python"]


def leaf(group: click.Group, words: list[str]) -> tuple[str, dict[str, Any]]:
    """Return the command that `words` name below `group`, and its parameters; raise UsageError if they cannot be parsed."""
    name, command, rest = group.resolve_command(click.Context(group), words)
    assert name is not None and command is not None
    if isinstance(command, click.Group):
        below, parameters = leaf(command, rest)
        return f"{name} {below}", parameters
    return name, command.make_context(name, list(rest)).params


def check_train(words: list[str]) -> None:
    """Check the parts of the configuration that `psnode train` checks before it starts."""
    _, parameters = leaf(app, ["train", *words])
    file = parameters.pop("file")
    config = load({name: value for name, value in parameters.items() if value not in (None, ())}, {}, file)
    if not config.resume:
        resolve(config)


def check_psnode(words: list[str]) -> None:
    name, parameters = leaf(app, words)
    if name == "train":
        check_train(words[1:])
    elif name == "launch" and parameters["command"][0].endswith(".py"):
        assert (ROOT / parameters["command"][0]).exists()
    elif name == "launch":
        check_psnode(list(parameters["command"]))
    elif name == "bench convergence":
        for run in named_runs(parameters["runs"]).values():
            of_ddp = run.startswith("ddp:")
            flags = ["dense", *shlex.split(run)[1:]] if of_ddp else shlex.split(run)
            check_train([*shlex.split(parameters["common"]), "--scheme", *flags])
    elif name == "bench peers":
        for scheme in parameters["schemes"]:
            check_train(["--scheme", *shlex.split(scheme)])


def check_study(words: list[str]) -> None:
    """Check that the study exists and accepts the flags."""
    study = importlib.import_module(words[0]).STUDY
    harness.command_of(study, words[0]).make_context(words[0], list(words[1:]))


def check_script(words: list[str]) -> None:
    """Check that the script exists and accepts the flags, and check the command, or the flags of train, that follow `--`."""
    script = ROOT / words[0]
    split = words.index("--") if "--" in words else len(words)
    text, rest = script.read_text(), words[split + 1 :]
    if "[FLAGS of psnode train]" in text:
        check_train(words[1:])
        return
    for flag in (word.partition("=")[0] for word in words[1:split] if word.startswith("--")):
        assert re.search(rf"{flag}(?![\w-])", text), f"{script.name} has no {flag}"
    if rest and rest[0].startswith("--"):
        check_train(rest)
    elif rest:
        check(rest)


def check(words: list[str]) -> None:
    program = words[0]
    if program == "psnode":
        check_psnode(words[1:])
    elif program == "psnode-ec2":
        leaf(ec2, words[1:])
    elif program == "mpirun" and "psnode" not in words:
        assert words[-1] == "hostname" or (ROOT / words[words.index("python") + 1]).exists()
    elif program == "mpirun":
        check_psnode(words[words.index("psnode") + 1 :])
    elif program == "python" and words[1] == "-m" and words[2].startswith("studies."):
        check_study(words[2:])
    elif program == "python" and words[1].startswith("scripts/"):
        check_script(words[1:])
    elif program == "pytest":
        assert all((ROOT / word.partition("::")[0]).exists() for word in words[1:] if word.startswith("tests"))
    elif program.startswith("scripts/"):
        check_script(words)


@pytest.mark.parametrize("command", EVERY)
def test_every_command_parses(command: str) -> None:
    words = shlex.split(command, comments=True)
    cut = next((number for number, word in enumerate(words) if word in (">", "|", "&")), len(words))
    assert not any("..." in word for word in words), "a command that is cut short cannot be repeated"
    check(words[:cut])


@pytest.mark.parametrize(
    "command",
    [
        "psnode bench record GRADIENT",
        "psnode train --scheme topk:rate=1",
        "psnode launch -n 2 -- train --local 2 --nesterov --momentum 0",
        "psnode bench convergence --output OUT --run dense --common '--max-step 3'",
        "psnode-ec2 lunch",
        "scripts/fuzz.py --run 3 --sed 2",
        "python -m studies.rounds --frame 3",
    ],
)
def test_what_would_be_refused_is_found(command: str) -> None:
    with pytest.raises((click.UsageError, ConfigurationError, AssertionError)):
        check(shlex.split(command))


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.name)
def test_every_page_of_results_has_commands(page: Path) -> None:
    assert commands(page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_code_is_code(page: Path) -> None:
    for _, kind, block in FENCE.findall(page.read_text()):
        if kind == "python":
            ast.parse(textwrap.dedent(block))
        elif kind == "bash" and shutil.which("bash"):
            subprocess.run(["bash", "-n", "-c", textwrap.dedent(block)], check=True)


def test_every_block_of_python_in_docs_has_a_test_that_runs_it() -> None:
    found = {page.name: len(python_blocks(page)) for page in PAGES if page.parent.name not in ("results", "decisions")}
    told = {page: len(tests) for page, tests in PYTHON.items()}
    assert {page: count for page, count in found.items() if count and page != "CONTRIBUTING.md"} == told, (
        "run it, and say so in PYTHON"
    )


def test_every_page_has_a_place_in_the_navigation() -> None:
    """Check that the navigation lists every page except those of decisions/ and results/. The programs that build the site
    also refuse a missing page, but they are not needed here.
    """
    _, _, navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    found = {str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")}
    listed = set(re.findall(r"^ +- (?:.*: )?(\S+\.md)$", navigation, re.M))
    missing = sorted(page for page in found - listed if not page.startswith(("decisions/", "results/")))
    assert missing == [], "name the page under nav in mkdocs.yml"


def test_nobody_is_told_to_install_a_package_that_is_not_published() -> None:
    """Check that pages and messages name the clone: on PyPI the name may come to belong to another project."""
    sources = [*PAGES, *(path for folder in ("psnode", "tools", "examples", "scripts") for path in (ROOT / folder).rglob("*.*"))]
    told = re.compile(r"pip install\s+(?:-\S+\s+)*[\"']?psnode")
    texts = {path: path.read_text() for path in sources if path.suffix in (".md", ".py", ".sh", ".toml") and path.is_file()}
    assert [str(path.relative_to(ROOT)) for path, text in texts.items() if told.search(text)] == []
    assert told.search("pip install -U 'psnode[train]'") and not told.search("pip install '.[train]' in a clone of psnode")


def test_the_glossary_is_that_of_the_code() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "glossary.py", "--check"], check=False)
    assert done.returncode == 0, "run scripts/glossary.py"
    rows = [line.split(" | ") for line in (ROOT / "docs" / "glossary.md").read_text().splitlines() if " | " in line]
    assert len(rows) > 100
    assert [row for row in rows if not row[-1].strip(" |")] == [], "a class has no docstring"
