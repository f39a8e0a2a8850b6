"""Standard streams that take nothing: commands end quietly, a training goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LENET = ["train", "--local", "1", "--network", "LeNet", "--dataset", "synthetic", "--scheme", "dense", "--batch-size", "8"]


def closed_pipe() -> int:
    """The end for writing of a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    return write


def ended(arguments: list[str], folder: Path, out: int, err: int, *python: str) -> tuple[int, str]:
    """Exit code and standard error of a command with these streams."""
    done = subprocess.run(
        [sys.executable, *python, "-m", "psnode", *arguments],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    os.close(out)
    return done.returncode, done.stderr or ""


@pytest.mark.parametrize("python", [[], ["-u"]], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", [["codecs"], ["codecs", "--json"], ["--help"]], ids=" ".join)
def test_a_command_whose_reader_has_gone_ends_like_one_that_sigpipe_ended(
    tmp_path: Path, arguments: list[str], python: list[str]
) -> None:
    assert ended(arguments, tmp_path, closed_pipe(), subprocess.PIPE, *python) == (141, "")


def test_a_command_tells_of_a_full_disk_in_one_line(tmp_path: Path) -> None:
    code, text = ended(["codecs"], tmp_path, os.open("/dev/full", os.O_WRONLY), subprocess.PIPE)
    assert code == 2
    assert text.startswith("psnode: error: standard output takes nothing (No space left on device)")
    assert text.count("\n") == 1


def test_a_command_without_standard_streams_ends_well(tmp_path: Path) -> None:
    line = f"exec {sys.executable} -m psnode codecs >&- 2>&-"
    assert subprocess.run(["sh", "-c", line], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode == 0


@pytest.mark.parametrize("full", [False, True], ids=["closed pipes", "a full disk"])
def test_a_training_whose_output_and_error_are_lost_takes_all_steps(tmp_path: Path, full: bool) -> None:
    out, err = (os.open("/dev/full", os.O_WRONLY) if full else closed_pipe() for _ in range(2))
    flags = ["--max-steps", "20", "--log-interval", "1", "--train-dir", "run"]
    assert ended([*LENET, *flags], tmp_path, out, err)[0] == 0
    os.close(err)
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 20
    assert (tmp_path / "run" / "checkpoints" / "step-00000020").is_dir()
