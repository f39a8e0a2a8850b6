"""The scheme of a run that does not name one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.config.train_settings import settings


@pytest.mark.parametrize("optimizer", settings()["optimizer"].rules.choices)
def test_the_optimizer_decides(optimizer: str) -> None:
    expected = "polar-2bit" if optimizer in ("adam", "adamw", "nadam", "radam", "adamax") else "topk"
    assert Config(optimizer=optimizer).scheme == expected
    assert Config(optimizer=optimizer, scheme="auto").scheme == expected


@pytest.mark.parametrize("scheme", ["topk", "dense"])
def test_a_scheme_that_is_named_is_taken(scheme: str) -> None:
    assert Config(optimizer="adamw", scheme=scheme).scheme == scheme


def test_what_was_chosen_stays_when_settings_change() -> None:
    assert replace(Config(optimizer="adamw"), lr=0.1).scheme == "polar-2bit"
    assert replace(Config(), max_steps=3).scheme == "topk"


def test_under_adam_both_ways_have_two_bits_a_coordinate_and_what_is_lost_is_remembered() -> None:
    chosen = resolve(Config(optimizer="adamw"))
    assert (chosen.codec.partition(",")[0], chosen.downlink.partition(",")[0]) == ("polar:rate=2", "polar:rate=2")
    assert (chosen.feedback, chosen.momentum) == ("ef", 0.9)
