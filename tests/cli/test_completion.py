"""Completion of values by the real bash: the command line after a tab."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from psnode.cli import app
from psnode.codecs import get_codec

ROOT = Path(__file__).resolve().parents[2]
LINES = {  # typed -> the line after a tab, with a trailing space if the value is complete
    "--dataset syn": "--dataset synthetic ",
    "--scheme efs": "--scheme efsignsgd ",
    "--scheme topk:": "--scheme topk:",  # both parameters are possible, so the shell lists them
    "--scheme topk:ra": "--scheme topk:ratio=",
    "--scheme=topk:ra": "--scheme=topk:ratio=",
    "--scheme topk:ratio=0.1,s": "--scheme topk:ratio=0.1,sampled=",
    "--scheme topk:sampled=t": "--scheme topk:sampled=true ",
    "--scheme atomo:ra": "--scheme atomo:rank=",
    "--scheme topk:ratio=0.1+scal": "--scheme topk:ratio=0.1+scaledsign ",
    "--downlink den": "--downlink dense ",
    "--optimizer adamw": "--optimizer adamw ",
}


def completed(typed: str, name: str = "scheme") -> list[str]:
    """Return the completed values of an option, without a shell."""
    train = app.commands["train"]
    [option] = [each for each in train.params if each.name == name]
    return [item.value for item in option.shell_complete(click.Context(train), typed)]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_tab_in_bash_completes_schemes_their_parameters_and_stages(tmp_path: Path) -> None:
    """Check the lines that bash completes. A tab follows each typed line; Ctrl-A then moves to its start, where a command is
    inserted that prints the completed line.
    """
    program = tmp_path / "psnode"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m psnode "$@"\n')
    program.chmod(0o755)
    keys = "".join(f"psnode train {line}\t'\x01printf 'got<%s>\\n' '\n" for line in LINES)
    script = f'eval "$(_PSNODE_COMPLETE=bash_source psnode)"\n{keys}exit\n'
    env = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "TERM": "dumb"}
    env |= {"INPUTRC": "/dev/null", "HISTFILE": ""}
    done = subprocess.run(
        ["bash", "--norc", "-i"],
        input=script,
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("got<")]
    assert found == [f"got<psnode train {after}>" for after in LINES.values()], done.stderr


def test_what_is_offered_is_accepted() -> None:
    for name in completed("", "codec"):
        assert get_codec(name)
    stages = completed("topk+")
    assert {"topk+fp16", "topk+qsgd"} <= set(stages)
    assert not {"topk+topk", "topk+zstd"} & set(stages)
    lossless = completed("topk:ratio=0.1+qsgd:levels=3+")
    assert "topk:ratio=0.1+qsgd:levels=3+zstd" in lossless
    for chain in (*stages, *lossless):
        assert get_codec(chain)


def test_parameters_are_those_of_the_codec_that_are_not_there_yet() -> None:
    assert completed("topk:") == ["topk:ratio=", "topk:sampled="]
    assert completed("topk:sampled=true,") == ["topk:sampled=true,ratio="]
    assert completed("topk:sampled=") == ["topk:sampled=false", "topk:sampled=true"]
    assert completed("topk+qsgd:le") == ["topk+qsgd:levels="]


@pytest.mark.parametrize(
    "typed", ["nothing", "nothing:", "topk:x", "topk:ratio=", "topk:ratio=0.", "nothing+", "+", ":", "topk+nothing:"]
)
def test_what_nothing_can_follow_is_left_alone(typed: str) -> None:
    assert completed(typed) == []
