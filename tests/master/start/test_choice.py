"""The choice of --plan auto, on trial steps whose times are known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.master.start.choice import Candidate, Choice, candidates, choose, ddp_line
from psnode.protocol.link_rates import LinkRates

FAST = LinkRates(1e-4, 1e12, 1e12)
USUAL = Config(scheme="polar-2bit")


def names(**settings: Any) -> list[str]:
    config = Config(**settings)
    return [each.name for each in candidates(config, resolve(config))]


def test_a_run_may_get_what_loses_less_and_nothing_else() -> None:
    assert names() == ["polar-2bit", "bf16", "dense"]
    assert names(scheme="topk", optimizer="adamw") == ["topk", "bf16", "dense"]
    assert names(scheme="qsgd", codec="topk:ratio=0.1", feedback="ef") == ["topk:ratio=0.1", "bf16", "dense"]
    assert names(scheme="bf16") == ["bf16", "dense"]
    assert names(scheme="dense") == ["dense"]
    assert names(scheme="fp16") == ["fp16", "dense"]  # bf16 keeps fewer bits
    assert names(scheme="qsgd", codec="bf16") == ["bf16", "dense"]
    assert names(scheme="qsgd", codec="blosc", downlink="dense") == ["blosc", "dense"]
    assert names(scheme="dense", codec="topk:ratio=0.1", feedback="ef") == ["topk:ratio=0.1", "bf16", "dense"]
    assert names(scheme="qsgd", small_tensors="coded") == ["qsgd", "bf16", "dense"]
    assert names(scheme="qsgd", min_compress_bytes=0) == ["qsgd", "bf16", "dense"]


def test_weights_that_go_down_exactly_stay_exact() -> None:
    config = Config(scheme="qsgd", downlink="dense")
    assert {each.scheme.downlink for each in candidates(config, resolve(config))} == {"dense"}


def test_training_stays_the_same_but_for_what_coding_loses() -> None:
    """Check that a scheme with another learning rate or another momentum is not replaced by dense, whose steps would be
    different.
    """
    assert names(scheme="signsgd") == ["signsgd"]
    assert names(scheme="dgc") == ["dgc"]
    config = Config(scheme="qsgd", codec="topk:ratio=0.1", feedback="ef", aggregator="mean:clip=median", quantization_level=None)
    found = {each.name: each for each in candidates(config, resolve(config))}
    assert {each.scheme.aggregator for each in found.values()} == {"mean:clip=median"}
    dense = found["dense"].config
    assert (dense.scheme, dense.codec, dense.feedback, dense.downlink) == ("dense", None, None, None)
    assert dense.directory == config.directory


def chosen(seconds: Mapping[str, float], links: LinkRates = FAST, **bytes_of: float) -> tuple[Choice, list[str]]:
    """Return the choice among the usual candidates, and the trials in their order."""
    trials: list[str] = []

    def trial(each: Candidate) -> float:
        trials.append(each.name)
        return seconds[each.name]

    found = [
        Candidate(each.name, each.config, each.scheme, bytes_of.get(each.name.replace("-", "_"), 1.0), 1.0)
        for each in candidates(USUAL, resolve(USUAL))
    ]
    return choose(found, links, 4, trial), trials


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"polar-2bit": 0.1, "bf16": 0.3, "dense": 0.5}, "polar-2bit"),
        ({"polar-2bit": 0.1, "bf16": 0.09, "dense": 0.5}, "bf16"),
        ({"polar-2bit": 0.1, "bf16": 0.09, "dense": 0.08}, "dense"),
        ({"polar-2bit": 0.100, "bf16": 0.1, "dense": 0.1019}, "dense"),  # within 2 %: the one that loses nothing
        ({"polar-2bit": 0.100, "bf16": 0.1019, "dense": 0.1021}, "bf16"),
        ({"polar-2bit": 0.100, "bf16": 0.1021, "dense": 0.1021}, "polar-2bit"),
    ],
)
def test_the_fastest_is_chosen_and_of_equal_ones_the_one_that_loses_least(seconds: dict[str, float], expected: str) -> None:
    choice, _ = chosen(seconds)
    assert choice.candidate.name == expected
    assert choice.seconds == seconds[expected]
    verb = "compress" if expected == "polar-2bit" else "do not compress"  # as psnode plan says of half precision
    assert choice.told[0].startswith(f"{verb}: a step of {expected} takes ")


def test_only_close_schemes_are_tried_again() -> None:
    _, trials = chosen({"polar-2bit": 0.1, "bf16": 0.3, "dense": 0.5})
    assert sorted(trials) == ["bf16", "dense", "polar-2bit"]
    _, trials = chosen({"polar-2bit": 0.1, "bf16": 0.3, "dense": 0.11})
    assert sorted(trials) == ["bf16", *["dense"] * 3, *["polar-2bit"] * 3]
    assert trials[-4:] in (["polar-2bit", "dense"] * 2, ["dense", "polar-2bit"] * 2)  # in turn, so that drifts meet both


def test_a_scheme_whose_bytes_alone_take_too_long_is_not_tried() -> None:
    """Check dense with 4 workers x 10 MB at 100 MB/s: its bytes take 0.4 s, whatever its trial steps would take."""
    links = LinkRates(1e-4, 1e8, 1e9)
    seconds = {"polar-2bit": 0.1, "bf16": 0.05, "dense": 0.05}
    choice, trials = chosen(seconds, links, polar_2bit=1e5, bf16=1e6, dense=1e7)
    assert choice.candidate.name == "bf16"  # its 0.04 s of bytes may be hidden
    assert "dense" not in trials
    assert "dense at least 400 ms by its bytes" in choice.told[0]
    assert "800 Mbit/s up, 8 Gbit/s down" in choice.told[1]


def test_ddp_is_named_where_it_cannot_be_faster() -> None:
    """Check the time of DDP's bytes: 2 x 3/4 x 80 MB at 100 MB/s take 1.2 s."""
    links = LinkRates(1e-4, 1e8, 2e8)
    assert "at least 1,200 ms a step, with fp16 600 ms" in ddp_line(80_000_000, links, 4, 0.5)
    assert "may be as fast" in ddp_line(80_000_000, links, 4, 1.3)
