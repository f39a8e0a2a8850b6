"""The learning rate of a run that does not set one: it is the scheme's rate, which is resolved, recorded, reported, and kept
by a resumed run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.config.load import load
from psnode.config.resolve import resolve
from psnode.config.schemes import SCHEMES
from psnode.jobs.job import run
from psnode.records.directory import claim
from psnode.records.metrics import read_records


def config(train_dir: Path, **changed: Any) -> Config:
    settings: dict[str, Any] = {"network": "FC", "batch_size": 4, "max_steps": 2, "local": 1, "threads": 1, "tensorboard": False}
    return Config(train_dir=train_dir, **{**settings, **changed})


OTHER_RATES = dict.fromkeys(("signsgd", "signum"), 0.0005) | dict.fromkeys(("onebit", "tbq", "efsignsgd", "randk", "topk"), 0.1)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_learning_rate_is_a_twentieth_where_coordinates_move_by_it_and_tenfold_without_momentum(scheme: str) -> None:
    assert resolve(Config(scheme=scheme)).lr == OTHER_RATES.get(scheme, 0.01)


@pytest.mark.parametrize(
    ("fields", "lr"),
    [
        ({"scheme": "qsgd", "aggregator": "majority"}, 0.0005),
        ({"scheme": "signsgd", "aggregator": "mean"}, 0.0005),
        ({"scheme": "signum", "aggregator": "mean", "codec": "qsgd"}, 0.01),
        ({"scheme": "signsgd", "aggregator": "mean", "feedback": "ef"}, 0.01),
        ({"scheme": "dense", "codec": "sign"}, 0.0005),
    ],
    ids=str,
)
def test_what_decides_is_how_a_coordinate_moves_and_not_the_schemes_name(fields: dict[str, Any], lr: float) -> None:
    assert resolve(Config(**fields)).lr == lr


def test_the_schemes_own_is_applied_recorded_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(config(tmp_path, scheme="signsgd"))
    assert json.loads((tmp_path / "config.json").read_bytes())["config"]["lr"] == 0.0005
    assert [record["lr"] for record in read_records(tmp_path / "metrics.jsonl")] == [0.0005, 0.0005]
    assert "learning rate: 0.0005, signsgd's own: every coordinate moves by as much in a step" in capsys.readouterr().err
    run(config(tmp_path, scheme="signsgd", resume=True, max_steps=3))
    assert [record["lr"] for record in read_records(tmp_path / "metrics.jsonl")] == [0.0005] * 3


def test_a_learning_rate_that_would_suit_dense_sgd_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(config(tmp_path / "named", scheme="signum", lr=0.01))
    assert [record["lr"] for record in read_records(tmp_path / "named" / "metrics.jsonl")] == [0.01, 0.01]
    assert "learning rate: 0.01 moves every coordinate by as much in a step, 20 times signum's own" in capsys.readouterr().err
    run(config(tmp_path / "dense", scheme="dense"))
    assert "learning rate" not in capsys.readouterr().err


def test_a_learning_rate_that_needs_momentum_is_warned_of_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(config(tmp_path / "own", scheme="randk"))
    assert "learning rate: 0.1, randk's own: its optimizer has no momentum; --lr changes it" in capsys.readouterr().err
    run(config(tmp_path / "low", scheme="randk", lr=0.02))
    assert "learning rate: 0.02 without momentum is as slow as 0.002 with momentum .9" in capsys.readouterr().err
    run(config(tmp_path / "momentum", scheme="randk", lr=0.02, momentum=0.9))
    assert "learning rate" not in capsys.readouterr().err


def test_a_record_keeps_its_number(tmp_path: Path) -> None:
    """Check that a resumed run keeps the recorded rate .01 for signsgd: earlier versions recorded .01 although the user gave
    no rate.
    """
    run(config(tmp_path, scheme="signsgd", lr=0.01))
    assert load({"resume": True, "train_dir": tmp_path}, {}).lr == 0.01
    with claim(config(tmp_path, scheme="signsgd", resume=True)) as found:
        assert (found.config.lr, found.notes) == (0.01, ())


def test_a_begun_run_keeps_its_lead(tmp_path: Path) -> None:
    """Check that a run of the default scheme under SGD that began with a lead goes on with it, although such runs begin without
    a lead now.
    """
    run(config(tmp_path, scheme="polar-2bit"))
    file = tmp_path / "config.json"
    content = json.loads(file.read_bytes())
    assert content["scheme"]["downlink_lead"] == 0
    content["scheme"]["downlink_lead"] = 0.3
    file.write_text(json.dumps(content))
    with claim(config(tmp_path, scheme="polar-2bit", resume=True)) as found:
        assert found.scheme.downlink_lead == 0.3
