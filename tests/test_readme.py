"""The README's commands and code, run unchanged."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from psnode.codecs import get_codec
from tests.forking import FORKING

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.M | re.S)
SCRIPTS = [text for kind, text in BLOCKS if kind == "bash" and "scripts/" in text]  # run by test_scripts.py
COMMANDS = [text for kind, text in BLOCKS if kind == "bash" and "scripts/" not in text]
PROGRAMS = [text for kind, text in BLOCKS if kind == "python"]
BIN = Path(sys.executable).parent


def environment() -> dict[str, str]:
    """Return the variables of a user's shell."""
    # options for a machine with few cores, and for the user root
    roots = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    roots |= {"PRTE_MCA_rmaps_default_mapping_policy": ":OVERSUBSCRIBE", "PRTE_MCA_hwloc_default_binding_policy": "none"}
    return {**os.environ, **roots, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def test_there_are_blocks_of_every_kind() -> None:
    assert (len(SCRIPTS), len(COMMANDS), len(PROGRAMS)) == (1, 4, 1)
    assert "scripts/quickstart.sh" in SCRIPTS[0]
    assert "scripts/test.sh" in SCRIPTS[0]


@pytest.mark.serial
@pytest.mark.parametrize("commands", COMMANDS, ids=lambda text: text.split("\n")[0][:60])
def test_the_commands_do_what_they_should(commands: str, tmp_path: Path) -> None:
    if shutil.which("psnode", path=str(BIN)) is None:
        pytest.skip("psnode is not installed here: pip install -e .")
    if "mpirun" in commands and not (BIN / "mpirun").exists() and shutil.which("mpirun") is None:
        pytest.skip("no mpirun: install the extra `mpi`")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    variables = environment()
    if "train" in commands:  # forks; the other commands run what is installed, and look at the interpreter
        python, ranks = FORKING.launching()
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "psnode").write_text(f'#!/bin/sh\nexec {python} -m psnode "$@"\n')
        (tmp_path / "bin" / "psnode").chmod(0o755)
        variables |= {**ranks, "PATH": os.pathsep.join((str(tmp_path / "bin"), ranks["PATH"]))}
    done = subprocess.run(
        ["bash", "-e", "-c", commands], cwd=tmp_path, env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for directory in re.findall(r"--train-dir (\S+)", commands):
        assert (tmp_path / directory / "summary.json").exists()


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_code_runs(program: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "5.06 bits a coordinate\n"


TABLE = re.findall(r"^\| `([^`]+)` \| ([\d.]+) \| (.*?) \|", (ROOT / "docs" / "codecs.md").read_text(), re.M)


@pytest.mark.parametrize(("spec", "bits", "bias"), TABLE, ids=[row[0] for row in TABLE])
def test_the_table_says_what_the_codecs_say(spec: str, bits: str, bias: str) -> None:
    codec = get_codec(spec)
    assert bias == ("none, exact" if codec.lossless else "none" if codec.unbiased else "biased")
    shape = (512, 4608) if codec.shaped else (1 << 24,)
    assert float(bits) <= 8 * codec.max_nbytes(shape) / (512 * 4608 if codec.shaped else 1 << 24) * 1.01


def test_the_table_has_every_codec() -> None:
    from psnode.codecs import available

    named = {re.split(r"[:+]", spec)[0] for spec, _, _ in TABLE}
    assert len(TABLE) > 20 and named <= set(available())


def test_the_first_screen_shows_a_result() -> None:
    figure = re.findall(r"^!\[[^\]]+\]\(([^)]+)\)$", README, re.M)[0]
    assert (ROOT / figure).is_file()
    assert README.index(figure) < README.index("## ")
    assert "source .venv/bin/activate" in SCRIPTS[0]


def test_every_link_leads_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
