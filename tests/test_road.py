"""The hooks of codecs that one step of training runs: up, in a worker's encoding thread, and down, in the master's lanes.

A kernel that serves two steps at once is of use only if its hook is on this road. Warm-up runs in other threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from psnode.codecs import Codec, get_codec
from psnode.job import run
from psnode.schemes import SCHEMES
from tests.codecs.family import forms
from tests.test_conservation import Linear, config

CALLS = list[tuple[str, str, str]]  # thread, codec, Class.hook

SUM = "Codec._encode_parts"  # a sweep of its own that adds the gradient to the residual
SEARCHED = ("Searching._encode_parts", "Selector._encode_source")  # the sweep that adds also searches
UPLINK: dict[str, tuple[str, ...]] = {
    "dense": ("Identity._encode",),
    "fp16": ("SixteenBits._encode",),
    "bf16": ("SixteenBits._encode",),
    "qsgd": ("Qsgd._encode",),
    "atomo": ("Reducer._encode",),
    "atomo-entrywise": ("Entrywise._encode",),
    "nuqsgd": ("Nuqsgd._encode", "Nuqsgd._encode_error"),
    "natural": ("Natural._encode", "Natural._encode_error"),
    "dithered": ("Chain._encode", "Chain._encode_values"),
    "terngrad": ("TernGrad._encode",),
    "minmax": ("MinMax._encode",),
    "onebit": (SUM, "Binary._encode_error"),
    "signsgd": ("Binary._encode",),
    "signum": ("Binary._encode",),
    "tbq": (SUM, "Tbq._encode_error"),
    "efsignsgd": (SUM, "Binary._encode_error"),
    "randk": SEARCHED,
    "graddrop": SEARCHED,
    "topk": SEARCHED,
    "polar": (SUM, "Codec._encode_error", "Polar._encode"),
    "countsketch": (SUM, "Codec._encode_error", "LinearSketch._encode"),
    "countmean": (SUM, "Codec._encode_error", "LinearSketch._encode"),
    "lss": (SUM, "Lss._encode_error"),
    "sketchml": ("SketchMl._encode",),
    "dgc": ("Searching._encode_error", "Selector._encode_source"),
}
WITH_FEEDBACK = {
    "qsgd": (SUM, "Codec._encode_error", "Contractive._encode", "Qsgd._encode_dots"),
    "terngrad": (SUM, "Codec._encode_error", "Contractive._encode", "TernGrad._encode_dots"),
}
DOWNLINK = {
    "qsgd": ("Codec._encode_change", "Contractive._encode", "Qsgd._encode_dots"),
    "scaledsign": ("Codec._encode_change", "Binary._encode"),
    "topk": ("Searching._encode_change", "Selector._encode_source"),
    "topk+fp16": ("Searching._encode_change", "SparseChain._encode_source", "Chain._encode_values", "SixteenBits._encode"),
}

# Adding, coding and subtracting in one sweep over memory: their kernels are on the road of no scheme.
ONE_SWEEP = {"Binary._encode_sum", "Tbq._encode_sum", "Contractive._encode_sum", "Qsgd._encode_sum_dots"}


def classes() -> set[type]:
    """All classes of codecs, wrappers and chains among them."""
    for spec in forms():
        get_codec(spec).contractive()
    found, below = set[type](), {Codec}
    while below:
        found |= below
        below = {child for parent in below for child in parent.__subclasses__()}
    return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> CALLS:
    """Every call of an encode hook from now on, in order."""
    found: CALLS = []

    def recorded(owner: type, name: str, hook: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(hook)
        def record(self: Codec, *arguments: Any) -> Any:
            found.append((threading.current_thread().name, self.id, f"{owner.__name__}.{name}"))
            return hook(self, *arguments)

        return record

    for owner in classes():
        for name, hook in list(vars(owner).items()):
            if name.startswith("_encode") and callable(hook):
                monkeypatch.setattr(owner, name, recorded(owner, name, hook))
    return found


def road(calls: CALLS, thread: str) -> tuple[str, ...]:
    """The hooks that were called in threads of a name, each once, but for those of tensors that travel as they are."""
    here = [(codec, hook) for name, codec, hook in calls if name.startswith(thread)]
    coded = [hook for codec, hook in here if codec != "identity"]
    return tuple(dict.fromkeys(coded or [hook for _, hook in here]))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_step_of_every_scheme_takes_this_road_up(scheme: str, tmp_path: Path, calls: CALLS) -> None:
    run(config(tmp_path, scheme, SCHEMES[scheme].feedback, 1, max_steps=1, momentum=None), Linear(1))
    assert road(calls, "encode") == UPLINK[scheme]
    assert not ONE_SWEEP.intersection(road(calls, "encode"))


@pytest.mark.parametrize("scheme", WITH_FEEDBACK)
def test_a_step_of_an_unbiased_scheme_with_feedback_takes_this_road_up(scheme: str, tmp_path: Path, calls: CALLS) -> None:
    run(config(tmp_path, scheme, "ef", 1, max_steps=1), Linear(1))
    assert road(calls, "encode") == WITH_FEEDBACK[scheme]
    assert not ONE_SWEEP.intersection(road(calls, "encode"))


@pytest.mark.parametrize("spec", DOWNLINK)
def test_a_step_takes_this_road_down(spec: str, tmp_path: Path, calls: CALLS) -> None:
    run(config(tmp_path, "dense", "none", 1, max_steps=1, downlink=spec), Linear(1))
    assert road(calls, "lane") == DOWNLINK[spec]


def test_the_sweeps_that_no_step_takes_are_hooks_of_codecs() -> None:
    assert {f"{owner.__name__}.{name}" for owner in classes() for name in vars(owner)} >= ONE_SWEEP
