"""The scheme of a run that does not name one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from psnode.config import Config
from psnode.config.load import load
from psnode.config.plain_json import to_json
from psnode.config.resolve import resolve
from psnode.config.train_settings import settings


@pytest.mark.parametrize("optimizer", settings()["optimizer"].rules.choices)
def test_every_optimizer_gets_two_bits(optimizer: str) -> None:
    assert Config(optimizer=optimizer).scheme == "polar-2bit"
    assert Config(optimizer=optimizer, scheme="auto").scheme == "polar-2bit"


@pytest.mark.parametrize("scheme", ["topk", "dense"])
def test_a_scheme_that_is_named_is_taken(scheme: str) -> None:
    assert Config(optimizer="adamw", scheme=scheme).scheme == scheme


def test_what_was_chosen_stays_when_settings_change() -> None:
    assert replace(Config(scheme="topk"), optimizer="adamw").scheme == "topk"
    assert replace(Config(), max_steps=3).scheme == "polar-2bit"


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_both_ways_have_two_bits_a_coordinate_and_what_is_lost_is_remembered(optimizer: str) -> None:
    chosen = resolve(Config(optimizer=optimizer))
    assert (chosen.codec.partition(",")[0], chosen.downlink.partition(",")[0]) == ("polar:rate=2", "polar:rate=2")
    assert (chosen.feedback, chosen.momentum) == ("ef", 0.9)


def begun(directory: Path, scheme: str) -> None:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(to_json({"config": Config(scheme=scheme, max_steps=70).to_dict()}))


@pytest.mark.parametrize("given", [{}, {"scheme": "auto"}])
@pytest.mark.parametrize("scheme", ["topk", "atomo", "polar-2bit"])
def test_a_run_under_an_earlier_default_is_found_and_keeps_it(
    scheme: str, given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begun(Path("runs") / f"lenet-digits-{scheme}", scheme)
    found = load({"resume": True, **given}, {})
    assert (found.scheme, found.max_steps) == (scheme, 70)
    assert found.directory == Path("runs") / f"lenet-digits-{scheme}"


def test_a_run_under_the_default_of_today_goes_before_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for scheme in ("topk", "polar-2bit"):
        begun(Path("runs") / f"lenet-digits-{scheme}", scheme)
    assert load({"resume": True}, {}).scheme == "polar-2bit"
    assert load({"resume": True, "train_dir": Path("runs/lenet-digits-topk")}, {}).scheme == "topk"
    assert load({"resume": True, "scheme": "topk"}, {}).scheme == "topk"
