"""The sweeps of codecs in a training step: uplink in a worker's encoding thread, downlink in the master's lanes.

A kernel that does two things at once is useful only if training passes it the source and the sink. Warm-up runs in other threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from psnode.codecs import Codec, get_codec
from psnode.codecs.base import NOTHING, Bytes, Floats, Sink, Source, Words, readonly
from psnode.codecs.sinks import InnerProducts
from psnode.codecs.sources import Accumulated
from psnode.config.schemes import SCHEMES
from psnode.jobs.job import run
from psnode.records import checkpoint
from tests.codecs.family import forms
from tests.feedback.test_conservation import Linear, config

CODED = Codec._coded
CALLS = list[tuple[str, str, str]]  # thread, codec, call

# "Class(Source, Sink)": a call of Class._encode; SUM: a sweep before coding that adds the gradient to the residual
PLAIN = "(Values, Sink)"
FED_BACK = "(Accumulated, Subtracted)"  # without SUM, the sweep that codes also adds the gradient
SUM = "Accumulated.array"
UPLINK: dict[str, tuple[str, ...]] = {
    "dense": ("Identity" + PLAIN,),
    "fp16": ("Generated" + PLAIN,),
    "bf16": ("Generated" + PLAIN,),
    "qsgd": ("Qsgd" + PLAIN,),
    "ecq": ("Qsgd" + PLAIN,),
    "atomo": ("Reducer" + PLAIN,),
    "atomo-entrywise": ("Entrywise" + PLAIN,),
    "nuqsgd": ("Nuqsgd" + PLAIN, "Generated" + PLAIN),
    "natural": ("Generated" + PLAIN,),
    "dithered": ("Chain" + PLAIN,),
    "terngrad": ("Generated" + PLAIN,),
    "minmax": ("Generated" + PLAIN,),
    "onebit": ("Generated" + FED_BACK,),
    "signsgd": ("Generated" + PLAIN,),
    "signum": ("Generated" + PLAIN,),
    "tbq": ("Tbq" + FED_BACK,),  # the threshold depends on the sum, and is found in the sweep that adds
    "efsignsgd": ("ScaledSign" + FED_BACK, "Generated" + FED_BACK),
    "randk": ("Selector" + FED_BACK, SUM),  # needs no search
    "graddrop": ("Selector" + FED_BACK,),
    "adacomp": ("AdaComp" + FED_BACK,),
    "topk": ("Selector" + FED_BACK,),
    "polar": ("Polar" + FED_BACK, SUM),
    "polar-2bit": ("Polar" + FED_BACK, SUM),
    "polar-1bit": ("Polar" + FED_BACK, SUM),
    "countsketch": (SUM, "LinearSketch(Accumulated, Sink)"),
    "countmean": (SUM, "LinearSketch(Accumulated, Sink)"),
    "lss": ("Lss" + FED_BACK, SUM),
    "sketchml": ("SketchMl" + PLAIN,),
    "dgc": ("Selector" + FED_BACK,),
    "atomo-fourier": ("Fourier" + PLAIN, "Entrywise" + PLAIN),
}
WITH_FEEDBACK = {
    "qsgd": ("Contractive" + FED_BACK, "Qsgd(Accumulated, InnerProducts)"),
    # one sweep; the factors of all others are known only after the whole array is coded
    "qsgd:factors=true": ("Qsgd" + FED_BACK,),
    "terngrad": ("Contractive" + FED_BACK, "Generated(Accumulated, InnerProducts)"),
    "minmax": ("Contractive" + FED_BACK, "Generated(Accumulated, InnerProducts)"),
    "natural": ("Contractive" + FED_BACK, "Generated(Accumulated, InnerProducts)"),
    "nuqsgd": (
        "Contractive" + FED_BACK,
        "Nuqsgd(Accumulated, InnerProducts)",
        "Generated(Accumulated, InnerProducts)",
    ),
    "nuqsgd:bucket=1024": ("Contractive" + FED_BACK, SUM, "Nuqsgd(Accumulated, Sink)"),
    "dithered": ("Contractive" + FED_BACK, "Generated(Accumulated, InnerProducts)"),
    "tbq:tau=0.01": ("Tbq" + FED_BACK,),
    "scaledsign:bucket=65536": ("ScaledSign" + FED_BACK,),
}
DOWNLINK = {
    "qsgd": ("Contractive(Difference, Added)", "Qsgd(Difference, InnerProducts)"),
    "scaledsign": ("ScaledSign" + PLAIN, "Generated" + PLAIN),
    "topk": ("Selector(Difference, Added)",),
    "topk+fp16": ("Chain(Difference, Added)", "Generated" + PLAIN),
}


def classes() -> set[type]:
    """Return all classes of codecs, including wrappers and chains."""
    for spec in forms():
        get_codec(spec).contractive()
    found, below = set[type](), {Codec}
    while below:
        found |= below
        below = {child for parent in below for child in parent.__subclasses__()}
    return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> CALLS:
    """Record every later call of _encode, and every sweep that only adds, in order."""
    found: CALLS = []

    def recorded(owner: type, hook: Callable[..., int]) -> Callable[..., int]:
        @wraps(hook)
        def record(self: Codec, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
            call = f"{owner.__name__}({type(source).__name__}, {type(sink).__name__})"
            found.append((threading.current_thread().name, self.id, call))
            return hook(self, source, key, body, sink)

        return record

    make = Accumulated.array

    def array(self: Accumulated) -> Floats:
        if not self.is_added:
            found.append((threading.current_thread().name, "", SUM))
        return make(self)

    monkeypatch.setattr(Accumulated, "array", array)
    for owner in classes():
        if "_encode" in vars(owner):
            monkeypatch.setattr(owner, "_encode", recorded(owner, vars(owner)["_encode"]))
    return found


def road(calls: CALLS, thread: str) -> tuple[str, ...]:
    """Return the distinct calls in threads whose names begin with `thread`, without tensors sent uncoded unless all are."""
    here = [(codec, hook) for name, codec, hook in calls if name.startswith(thread)]
    coded = [hook for codec, hook in here if codec != "identity"]
    return tuple(dict.fromkeys(coded or [hook for _, hook in here]))


@pytest.mark.sweep
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_step_of_every_scheme_takes_this_road_up(scheme: str, tmp_path: Path, calls: CALLS) -> None:
    run(config(tmp_path, scheme, SCHEMES[scheme].feedback, 1, max_steps=1, momentum=None), Linear(1))
    assert road(calls, "encode") == UPLINK[scheme]


@pytest.mark.parametrize("spec", WITH_FEEDBACK)
def test_a_step_of_a_codec_with_feedback_takes_this_road_up(spec: str, tmp_path: Path, calls: CALLS) -> None:
    run(config(tmp_path, "qsgd", "ef", 1, max_steps=1, codec=spec), Linear(1))
    assert road(calls, "encode") == WITH_FEEDBACK[spec]


def in_three_sweeps(self: Codec, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
    """Run Codec._coded in three sweeps: add with NumPy, code, decode. Inner products are computed by the codec."""
    if isinstance(source, Accumulated):
        flat = source.target.reshape(-1)
        for place, part in source.take():
            flat[place : place + part.size] += part
    if isinstance(sink, InnerProducts):
        return CODED(self, source, key, body, sink)
    used = self._encode(source, key, body, NOTHING)
    self._apply(sink, source, readonly(body[:used]))
    return used


def remembered(folder: Path, workers: int) -> dict[str, bytes]:
    """Return the weights and the workers' memories in the last checkpoint, as bytes."""
    last = checkpoint.Checkpoint.open(sorted((folder / checkpoint.CHECKPOINTS).glob("step-*"))[-1])
    files = [checkpoint.MODEL, *(checkpoint.worker_file(rank) for rank in range(1, workers + 1))]
    return {f"{file}/{name}": tensor.numpy().tobytes() for file in files for name, tensor in last.tensors(file).items()}


@pytest.mark.sweep
@pytest.mark.parametrize(
    "spec",
    [
        "onebit",
        "scaledsign",
        "scaledsign:bucket=64",
        "tbq:tau=0.5",
        "tbq",
        "qsgd",
        "qsgd:factors=true",
        "terngrad",
        "minmax",
        "natural",
        "nuqsgd",
        "nuqsgd:bucket=1024",
        "dithered",
        "lss",
        "topk",
    ],
)
def test_one_sweep_trains_to_the_same_bits_as_three(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare runs with one sweep and with three. All tensors are in one segment if the codec allows this, so that gradients
    arrive in parts.
    """
    settings: dict[str, Any] = {"codec": spec, "max_steps": 3, "downlink": "scaledsign"}
    run(config(tmp_path / "one", "qsgd", "ef", 2, **settings), Linear(2))
    monkeypatch.setattr(Codec, "_coded", in_three_sweeps)
    run(config(tmp_path / "three", "qsgd", "ef", 2, **settings), Linear(2))
    found = remembered(tmp_path / "one", 2)
    assert sum("residual" in name for name in found) >= 2
    assert found == remembered(tmp_path / "three", 2)


@pytest.mark.parametrize("spec", DOWNLINK)
def test_a_step_takes_this_road_down(spec: str, tmp_path: Path, calls: CALLS) -> None:
    run(config(tmp_path, "dense", "none", 1, max_steps=1, downlink=spec), Linear(1))
    assert road(calls, "lane") == DOWNLINK[spec]
