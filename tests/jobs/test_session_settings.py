"""Settings of a session: those of a run, except that settings which the program itself decides are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import psnode
from psnode.errors import ConfigurationError
from psnode.jobs.sessions.session_settings import configured
from psnode.jobs.sessions.words import of_program
from psnode.records.directory import claim
from psnode.transport.mpi.environment import WorldRank


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove variables of launchers and of psnode."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PSNODE_LR", "PSNODE_RESUME"):
        monkeypatch.delenv(name, raising=False)


def config(tmp_path: Path, **given: Any) -> psnode.Config:
    return configured(nn.Linear(2, 2), {"train_dir": tmp_path, **given}, WorldRank(1, 4))


def test_settings_come_by_name_or_by_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSNODE_LR", "0.25")
    found = config(tmp_path, scheme="qsgd", momentum=0.5)
    assert (found.scheme, found.lr, found.momentum) == ("qsgd", 0.25, 0.5)
    assert found.task == "python:Linear"
    assert not found.overlap
    assert found.group_bytes > 0  # no steps can be rehearsed
    assert config(tmp_path, lr=0.5).lr == 0.5


@pytest.mark.parametrize("topology", ["mesh", "mesh:master=auto"])
def test_groups_of_weights_that_are_dealt_have_the_size_that_fits_the_workers(tmp_path: Path, topology: str) -> None:
    """Check that the session leaves the size open: the job chooses it from the model and the number of workers, without
    trial steps.
    """
    assert config(tmp_path, topology=topology).group_bytes == 0
    assert config(tmp_path, topology=topology, group_bytes=70_000).group_bytes == 70_000


@pytest.mark.parametrize(
    ("given", "least"), [({}, 3), ({"spares": 1}, 2), ({"topology": "sharded:servers=2"}, 2), ({"min_workers": 1}, 1)]
)
def test_all_workers_are_needed_unless_the_program_says_how_many(tmp_path: Path, given: dict[str, Any], least: int) -> None:
    assert config(tmp_path, **given).min_workers == least


def test_a_program_that_is_started_alone_has_no_servers(tmp_path: Path) -> None:
    given = {"train_dir": tmp_path, "topology": "sharded:servers=2"}
    with pytest.raises(ConfigurationError, match=r"^topology has no sharded:servers=2 in a program that is started alone: start"):
        configured(nn.Linear(2, 2), given, WorldRank(1, 2), alone=True)


def test_a_resumed_session_needs_the_workers_that_it_has_now(tmp_path: Path) -> None:
    before = config(tmp_path, lr=0.3)
    (tmp_path / "config.json").write_text(json.dumps({"config": before.to_dict(), "plan": {}, "workers": 3}))
    found = configured(nn.Linear(2, 2), {"train_dir": tmp_path, "resume": True}, WorldRank(1, 3))
    assert (found.lr, found.min_workers) == (0.3, 2)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"max_step": 3}, r"no setting max_step; did you mean max_steps\?"),
        ({"batch_size": 8}, r"batch_size has no meaning in a session: it is that of the loader"),
        ({"plan": "auto"}, r"plan has no \"auto\" in a session"),
        ({"topology": "auto"}, 'topology has no "auto" in a session, .*: name a topology'),
        ({"local": 2}, r"local has no meaning in a session: start the program with mpirun"),
        ({"network": "FC"}, r"network has no meaning"),
        ({"overlap": True}, r"overlap has no meaning"),
        ({"lr": -1.0}, r"--lr"),
        (
            {"optimizer": torch.optim.SGD([torch.zeros(1)])},
            r"optimizer is a name in a session, .*, not an object of SGD: rank 0 makes it",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(tmp_path: Path, given: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as caught:
        config(tmp_path, **given)
    assert "\n" not in str(caught.value)


def test_the_class_of_an_optimizer_is_not_taken_for_a_function_that_makes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    with pytest.raises(ConfigurationError, match="not the class SGD: rank 0 makes it, of that name"):
        psnode.session(nn.Linear(2, 2), train_dir=tmp_path, optimizer=torch.optim.SGD)


def test_a_session_without_its_block_is_told_to_write_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    session = psnode.session(nn.Linear(2, 2), train_dir=tmp_path, max_steps=1)
    with pytest.raises(ConfigurationError, match=r"write `with psnode\.session\(\.\.\.\) as s:` around the loop"):
        next(session.batches([torch.zeros(1)]))


def test_a_constraint_that_cannot_be_called_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    with pytest.raises(ConfigurationError, match=r"constrain must be a function of the model, not 0\.5"):
        psnode.session(nn.Linear(2, 2), train_dir=tmp_path, constrain=0.5)  # type: ignore[arg-type]  # the mistake


def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"a session trains a torch\.nn\.Module, not a list"):
        configured([nn.Linear(2, 2)], {"train_dir": tmp_path}, WorldRank(1, 4))  # type: ignore[arg-type]  # the mistake


def test_a_job_of_one_rank_is_told_how_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    with pytest.raises(ConfigurationError, match="mpirun -n 3 python PROGRAM"):
        psnode.session(nn.Linear(2, 2), train_dir=tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "runs/x already holds a run: continue it with --resume or choose another --train-dir",
            "runs/x already holds a run: continue it with resume=True (PSNODE_RESUME=true) or choose another train_dir=",
        ),
        ("raise --pause-deadline if they are only slow", "raise pause_deadline= if they are only slow"),
        ("--no-memory-check begins all the same", "memory_check=False begins all the same"),
        (
            "keeps less (psnode train --dry-run lists it); drop --ema-decay",
            "keeps less (psnode train --dry-run lists it); drop ema_decay=",
        ),
        ("0 of --min-workers 1 are left", "0 of min_workers=1 are left"),
        ("cost 6 %; --scheme polar-2bit, the default", "cost 6 %; scheme=polar-2bit, the default"),
        ("--train-dir /a cannot be written; choose another", "train_dir=/a cannot be written; choose another"),
        ("compare with --scheme qsgd", "compare with scheme=qsgd"),
        ("choose another --scheme", "choose another scheme="),
        ("--scheme must be one of dense, qsgd", "scheme= must be one of dense, qsgd"),
        ("mpirun --with-ft ulfm and step-00000003--x", "mpirun --with-ft ulfm and step-00000003--x"),
    ],
)
def test_messages_name_arguments_of_the_program_in_the_place_of_flags(text: str, expected: str) -> None:
    assert of_program(text) == expected


def test_an_error_of_a_setting_names_the_argument(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^lr="):
        psnode.session(nn.Linear(2, 2), train_dir=tmp_path, lr=-1.0)


@pytest.mark.parametrize("asked", ["argument", "variable"])
def test_resume_auto_resumes_a_run_that_is_there_and_leaves_out_the_weights_to_begin_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    given = {"resume": "auto"} if asked == "argument" else {}
    if asked == "variable":
        monkeypatch.setenv("PSNODE_RESUME", "auto")
    before = config(tmp_path, init_from=tmp_path / "w.safetensors", **given)
    assert not before.resume
    assert before.init_from == tmp_path / "w.safetensors"
    (tmp_path / "config.json").write_text(json.dumps({"config": before.to_dict(), "plan": {}, "workers": 3}))
    assert config(tmp_path, init_from=tmp_path / "w.safetensors", **given).resume


def test_resume_auto_takes_no_foreign_config_for_a_run(tmp_path: Path) -> None:
    """Check that another program's config.json is neither resumed nor overwritten, and that one line names the file."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    found = config(tmp_path, resume="auto")
    assert not found.resume
    with pytest.raises(ConfigurationError, match=r"config\.json is another program's, .*choose another --train-dir"):
        claim(found)
    (tmp_path / "metrics.jsonl").touch()  # a damaged run: its error is told, and nothing is begun anew
    assert config(tmp_path, resume="auto").resume


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nowhere.py"], "there is no program nowhere.py"),
        (["--restarts", "1", "--", "nowhere.py"], "--restarts knows no directory to resume in"),
    ],
)
def test_a_program_that_cannot_be_launched_is_refused(words: list[str], text: str) -> None:
    done = subprocess.run([sys.executable, "-m", "psnode", "launch", "-n", "1", *words], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert text in done.stderr
