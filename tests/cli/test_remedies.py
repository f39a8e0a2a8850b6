"""An option named in a command's error belongs to this command, or to another command that the error names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click
import pytest

from psnode.cli import app

ROOT = Path(__file__).resolve().parents[2] / "psnode"
# by command: the modules whose errors only this command shows, with options of train that say how a run was or should be begun
MODULES: dict[str, tuple[str, ...]] = {
    "evaluate": ("evaluator.py",),
    "export": ("cli/export.py", "jobs/huggingface.py"),
    "plan": (
        "cli/plan.py",
        "jobs/planning/profile.py",
        "jobs/planning/refitting/finished_run.py",
        "jobs/planning/refitting/profile_refit.py",
        "report/step_picture.py",
    ),
    "runs": ("cli/runs.py", "report/run.py"),
    "simulate": ("cli/simulate.py", "jobs/simulating/disturbances.py", "jobs/simulating/simulated_records.py"),
    "report": ("cli/runs.py", "report/page.py"),
    "tune": ("cli/tune.py", "jobs/tuning/space.py", "jobs/tuning/trial.py", "jobs/tuning/sweep.py", "jobs/subprocess_runs.py"),
}
OF_TRAIN = {"evaluate": {"--ema", "--ema-decay"}, "plan": {"--plan", "--consistency"}}


def named(module: str) -> set[str]:
    """Return the options in the texts of errors raised and of lines logged by a module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        logged = isinstance(node, ast.Call) and ast.unparse(node.func) in ("_LOG.warning", "_LOG.info")
        if isinstance(node, ast.Raise) or logged:
            texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            found |= {option for text in texts for option in re.findall(r"(?<![\\w-])--[a-z][a-z-]+", text)}
    return found


@pytest.mark.parametrize("command", MODULES)
def test_every_option_that_an_error_names_is_there(command: str) -> None:
    own = {option for each in app.commands[command].params for option in (*each.opts, *each.secondary_opts)}
    train = {option for each in app.commands["train"].params for option in each.opts}
    assert OF_TRAIN.get(command, set()) <= own | train
    # tune passes this option on to train
    known = own | OF_TRAIN.get(command, set()) | ({"--local"} if command == "tune" else set())
    for module in MODULES[command]:
        assert named(module) <= known, module


def test_the_remedies_of_code_that_a_record_names_are_options_of_every_command_that_tells_them() -> None:
    for command in ("train", "evaluate", "export"):
        options = {option for each in app.commands[command].params for option in each.opts}
        assert {"--task", "--trust-run"} <= options
    assert isinstance(app, click.Group)
