"""Standard streams that cannot be written: commands end with at most one line of error, and a training continues."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forking import FORKING

ROOT = Path(__file__).resolve().parents[2]
LENET = ["train", "--local", "1", "--network", "LeNet", "--dataset", "synthetic", "--scheme", "dense", "--batch-size", "8"]


def closed_pipe() -> int:
    """Return the write end of a pipe without a reader."""
    read, write = os.pipe()
    os.close(read)
    return write


def ended(arguments: list[str], folder: Path, out: int, err: int, *python: str) -> tuple[int, str]:
    """Run a command with these streams, and return its exit code and standard error. `python` is an interpreter with its
    options.
    """
    done = subprocess.run(
        [*(python or [sys.executable]), "-m", "psnode", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    os.close(out)
    return done.returncode, done.stderr or ""


@pytest.mark.sweep
@pytest.mark.parametrize("python", [[sys.executable], [sys.executable, "-u"]], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", [["codecs"], ["codecs", "--json"], ["--help"]], ids=" ".join)
def test_a_command_whose_reader_has_gone_ends_like_one_that_sigpipe_ended(
    tmp_path: Path, arguments: list[str], python: list[str]
) -> None:
    assert ended(arguments, tmp_path, closed_pipe(), subprocess.PIPE, *python) == (141, "")


def test_a_command_tells_of_a_full_disk_in_one_line(tmp_path: Path) -> None:
    code, text = ended(["codecs"], tmp_path, os.open("/dev/full", os.O_WRONLY), subprocess.PIPE)
    assert code == 2
    assert text.startswith("psnode: error: standard output cannot be written (No space left on device)")
    assert text.count("\n") == 1


def test_a_command_without_standard_streams_ends_well(tmp_path: Path) -> None:
    line = f"exec {sys.executable} -m psnode codecs >&- 2>&-"
    assert subprocess.run(["sh", "-c", line], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode == 0


@pytest.mark.parametrize("full", [False, True], ids=["closed pipes", "a full disk"])
def test_a_training_whose_output_and_error_are_lost_takes_all_steps(tmp_path: Path, full: bool) -> None:
    out, err = (os.open("/dev/full", os.O_WRONLY) if full else closed_pipe() for _ in range(2))
    flags = ["--max-steps", "20", "--log-interval", "1", "--train-dir", "run"]
    assert ended([*LENET, *flags], tmp_path, out, err, FORKING.python())[0] == 0
    os.close(err)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 20
    assert (tmp_path / "run" / "checkpoints" / "step-00000020").is_dir()


# The commands in one terminal after another, each in a fork, since importing torch takes most of the time. `reconfigure` makes
# the streams what PYTHONIOENCODING makes them.
PROGRAM = r"""
import logging, os, sys
from pathlib import Path
from tests.forking.server import import_all
import_all()
for terminal in sys.argv[1:]:
    if not (fork := os.fork()):
        break
    assert os.waitpid(fork, 0)[1] == 0, terminal
else:
    sys.exit()
encoding, _, errors = terminal.partition(":")
os.mkdir(encoding)
os.chdir(encoding)
for number, name in ((1, "out"), (2, "err")):
    os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
sys.stdout.reconfigure(encoding=encoding, errors=errors or "strict")
sys.stderr.reconfigure(encoding=encoding)

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn
from psnode.cli import main
from psnode.config.logs import shown
from psnode_ec2.cli import main as ec2

TRAIN = ["train", "--local", "1", "--network", "FC", "--dataset", "digits", "--scheme", "dense", "--threads", "1"]
for code, arguments in [
    (0, [*TRAIN, "--batch-size", "8", "--max-steps", "2", "--no-tensorboard", "--train-dir", "Lauf–1"]),
    (0, ["runs", "Lauf–1"]), (0, ["codecs"]), (0, ["codecs", "qsgd"]), (0, ["evaluate", "--once", "--train-dir", "Lauf–1"]),
    (0, ["report", "Lauf–1", "--output", "bericht.html"]), (0, ["train", "--help"]), (0, ["bench", "codecs", "--help"]),
    (0, ["doctor", "--help"]), (0, ["tune", "--help"]), (0, ["export", "Lauf–1", "--output", "Lauf–1.safetensors"]),
    (2, [*TRAIN, "--network", "Größe–…×"]), (2, ["train", "--größe–…×"]), (2, ["evaluate", "--once", "--train-dir", "Größe–…×"]),
    (2, ["größe–…×"]), (2, ["launch", "-n", "1", "--", "größe–…×.py"]), (2, ["codecs", "größe–…×"]),
]:
    assert main(arguments) == code, arguments
try:
    ec2(["größe–…×"])
except SystemExit:
    pass
with shown():
    logging.getLogger("psnode.test").warning("Größe–…× │─╱█ \udce9")
for name in ("stdout", "stderr"):
    with Progress(SpinnerColumn(), BarColumn(), console=Console(force_terminal=True, stderr=name == "stderr")) as bar:
        bar.update(bar.add_task("", total=3), completed=2)
"""


SIZES = {"ascii:strict": "Grosse-~x", "latin-1": "Größe-~×", "cp1252": "Größe–…×"}


@pytest.fixture(scope="module")
def terminals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the output of all commands, in one folder per encoding."""
    folder = tmp_path_factory.mktemp("terminals")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "70"}
    command = [sys.executable, "-c", PROGRAM, *SIZES]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr + "".join(path.read_text(errors="replace") for path in folder.glob("*/err"))
    return folder


@pytest.mark.sweep
@pytest.mark.parametrize(("encoding", "size"), SIZES.items())
def test_a_terminal_that_is_not_utf_8_gets_plain_characters_from_every_command(terminals: Path, encoding: str, size: str) -> None:
    folder = terminals / encoding.partition(":")[0]
    out, err = ((folder / name).read_bytes().decode(folder.name) for name in ("out", "err"))
    assert "Traceback" not in out + err
    assert {letter for letter in out + err if not letter.isascii()} <= {*size, "–"} - ({"–"} if "–" not in size else set())
    assert "?" not in (out + err).replace("\x1b[?25", "")  # except in the codes that hide and show the cursor
    assert (out + err).lower().count(size.lower()) >= 7
    assert f"psnode: {size} |-/# \\xe9" in err
    assert "–" in (folder / "bericht.html").read_text(encoding="utf-8")
