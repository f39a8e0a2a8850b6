"""A run directory altered by an attacker does no harm: a resume ends at once with one error line, and an evaluator evaluates
only sound checkpoints and ends.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from psnode.cli import main
from psnode.config import settings
from psnode.config.load import load
from psnode.errors import CheckpointError, ConfigurationError
from psnode.evaluator import follow
from psnode.records import staging
from psnode.records.directory import claim

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OLD_RUNS = HERE.parent / "old_runs"
ATTACKS = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("attack", Path(__file__).stem))
pytestmark = pytest.mark.timeout(60)  # no process may wait for ever


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a copy of a run of OldTask whose module can be imported."""
    monkeypatch.syspath_prepend(str(OLD_RUNS))
    path = shutil.copytree(OLD_RUNS / "dense", tmp_path / "run")
    yield path
    sys.modules.pop("old_task", None)


def load_attack(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module(f"tests.attacks.{name}")


def resume(run: Path) -> None:
    """Claim the directory, as a job with --resume does."""
    claim(load({"resume": True, "train_dir": run, "trust_run": True}, {})).lock.release()


@pytest.mark.sweep
@pytest.mark.parametrize("name", ATTACKS)
def test_a_resumed_run_is_refused_in_one_line(name: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = load_attack(name, monkeypatch)
    resume(run)
    attack.attack(run)
    with pytest.raises(CheckpointError) as caught:
        resume(run)
    assert attack.TOLD in str(caught.value)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 1000
    assert not (run.parent / "victim").exists()


@pytest.mark.parametrize("name", ATTACKS)
def test_an_evaluator_measures_what_is_sound_and_ends(
    name: str, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attack = load_attack(name, monkeypatch)
    attack.attack(run)
    told = ""
    try:
        code = follow(run, once=True, interval=0.001, trust_run=True)
    except CheckpointError as error:  # raised for config.json, without which evaluation is impossible
        code, told = error.exit_code, str(error)
    file = run / "evaluations.jsonl"
    measured = [json.loads(line)["step"] for line in file.read_text().splitlines()] if file.is_file() else []
    assert (code, measured) == getattr(attack, "EVALUATED", (5, []))
    told += capsys.readouterr().err
    assert code == 0 or attack.TOLD in told
    assert "\x1b" not in told
    assert not (run.parent / "victim").exists()


def test_a_new_run_appends_to_no_file_that_a_link_names(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/history.jsonl").symlink_to("../victim")
    with pytest.raises(ConfigurationError, match=r"history\.jsonl cannot be used: it is not a regular file"):
        claim(load({"train_dir": tmp_path / "run"}, {}))


def test_a_recorded_name_that_a_terminal_would_obey_is_shown_harmless(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recorded_task(run, "\x1b]0;title\x07.py")
    assert main(["train", "--resume", "--train-dir", str(run)]) == 2
    assert "would execute ?]0;title?.py" in capfd.readouterr().err


def test_a_checkpoint_of_its_own_name_may_lie_anywhere(run: Path) -> None:
    shutil.copytree(run / "checkpoints/step-00000007", run / "best")
    (run / "link").symlink_to(run / "best")
    assert follow(run, checkpoint=str(run / "link"), trust_run=True) == 0


def test_what_is_not_psnodes_own_stays_when_a_run_is_resumed(run: Path, tmp_path: Path) -> None:
    """Check that resuming a run removes only psnode's own temporary files, even if `checkpoints` is a link to a home
    directory, in which other files and links lie.
    """
    home = (run / "checkpoints").rename(tmp_path / "home")
    (run / "checkpoints").symlink_to(home)
    kept = [home / ".ssh" / "id", home / ".bashrc", home / ".step-1" / "x", home / ".latest.txt", tmp_path / "aim" / "file"]
    gone = [home / ".step-00000009" / "half", home / ".step-00000005.gone" / "half", home / ".latest.123"]
    for file in kept + gone:
        file.parent.mkdir(exist_ok=True)
        file.write_text("x")
    (home / ".step-00000008").symlink_to(tmp_path / "aim")
    staging.sweep(run)
    assert [file for file in kept if not file.exists()] == []
    assert [file for file in [*gone, home / ".step-00000008"] if file.exists()] == []
    (home / ".step-00000011").symlink_to(tmp_path / "aim")
    staging.StagedCheckpoint(run, 11).discard()
    assert (tmp_path / "aim" / "file").exists()


def recorded_task(run: Path, value: Any) -> None:
    content = json.loads((run / "config.json").read_bytes())
    content["config"]["task"] = value
    (run / "config.json").write_text(json.dumps(content))


def test_code_that_only_a_record_names_is_not_executed(run: Path, tmp_path: Path) -> None:
    """Check that the author of a run directory cannot choose the code that is executed."""
    theirs = tmp_path / "theirs.py"
    theirs.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'executed')!r}).touch()\n")
    recorded_task(run, str(theirs))
    for execute in (lambda: load({"resume": True, "train_dir": run}, {}), lambda: follow(run, once=True)):
        with pytest.raises(ConfigurationError) as caught:
            execute()
        assert f"would execute {theirs}: name it again with --task, or add --trust-run" in str(caught.value)
    assert not (tmp_path / "executed").exists()
    assert load({"resume": True, "train_dir": run, "task": str(theirs)}, {}).task == str(theirs)
    assert load({"resume": True, "train_dir": run, "trust_run": True}, {}).task == str(theirs)
    assert follow(run, once=True, task="old_task") == 0
    assert not (tmp_path / "executed").exists()


def test_what_a_program_trained_names_no_code(run: Path) -> None:
    recorded_task(run, "python:OldTask")
    assert load({"resume": True, "train_dir": run}, {}).task == "python:OldTask"


def test_every_setting_that_names_code_is_flagged() -> None:
    assert [name for name, setting in settings().items() if setting.rules.names_code] == ["task", "codec", "log_to"]
