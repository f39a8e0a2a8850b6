"""The scheme of a run that does not name one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psnode.config import Config
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
