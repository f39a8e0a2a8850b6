"""Feedback rules on a stand-in for a device: payloads and memories equal the host's bit for bit after several steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.codecs import get_codec
from psnode.codecs.base import Bytes, Indices, Shape
from psnode.codecs.device.checks import check
from psnode.codecs.fp16 import Fp16
from psnode.codecs.rng import Key
from psnode.codecs.traits import Traits
from psnode.exchange.device.rules import rule_of
from psnode.exchange.device.segment import DeviceSegment
from psnode.feedback import Context, NoFeedback, get_feedback
from tests.rows.fake_cupy import CPU, install
from tests.rows.hosted import GXX

SIZE = 1300
with_gxx = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")


@dataclass(frozen=True, repr=False)
class Few(Fp16):
    """A variant of fp16 that is declared sparse: it claims to send only the values that do not decode to zero."""

    @property
    def traits(self) -> Traits:
        return Traits(sparse=True)

    def _support(self, body: Bytes, shape: Shape) -> Indices:
        out = np.empty(shape, np.float32)
        self._decode(body, out)
        return np.flatnonzero(out)


def gradient(step: int) -> np.ndarray:
    """Return values that fp16 mostly rounds to zero, including zeros of both signs."""
    rng = np.random.default_rng(step)
    x = rng.standard_normal(SIZE).astype(np.float32) * np.where(rng.random(SIZE) < 0.7, np.float32(2.0**-26), np.float32(1))
    x[::50], x[1::50] = 0.0, -0.0
    return x


@pytest.mark.sweep
@with_gxx
@pytest.mark.parametrize(
    "rule",
    [
        *("none", "ef", "ef:decay=0.5", "ema", "ema:beta=0.3", "momentum", "momentum:nesterov=true"),
        *("dgc", "dgc:momentum=0.7,nesterov=true"),
        *("dgc:clip=1", "dgc:clip=0.3,nesterov=true", "dgc:clip=1e9", "momentum:clip=1", "momentum:clip=2e-3,nesterov=true"),
    ],
)
@pytest.mark.parametrize("codec", [Few(), get_codec("bf16")], ids=repr)
def test_payloads_and_memories_are_those_of_the_host(
    rule: str, codec: Fp16, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, tmp_path)
    feedback = get_feedback(rule)
    verdict = check(get_codec(codec.id), CPU)
    assert verdict is not None and verdict.on_device is not None
    on_host, homes = feedback.init(SIZE), feedback.init(SIZE)
    segment = DeviceSegment({repr(codec): verdict.on_device}, CPU, feedback, (SIZE,), homes)
    for step in range(1, 6):
        x, key = gradient(step), Key.derive(step, "rules")
        pieces = [(0, torch.from_numpy(x[:300].copy())), (700, torch.from_numpy(x[700:1200].copy()))]
        x[300:700], x[1200:] = 0, 0  # no tensor had a gradient in these ranges
        expected = feedback.push(x, on_host, codec, key, context=Context(4, 0.5))
        found = segment.push(pieces, codec, key, np.empty(codec.max_nbytes((SIZE,)), np.uint8), Context(4, 0.5))
        assert found.data.tobytes() == expected.data.tobytes(), step
        if step in (2, 5):  # between these steps, only the device holds current memories
            segment.settle()
            for name, memory in on_host.items():
                assert homes[name].tobytes() == memory.tobytes(), (step, name)
        if step == 2 and feedback.memory is not None:  # the gradient that the master returns
            for memories in (on_host, homes):
                codec.decode_add(expected, memories[feedback.memory], 0.25)
    if feedback.masks:
        sent = on_host["momentum"] == 0
        assert sent.any() and sent.all() == (codec.id == "bf16")


@with_gxx
@pytest.mark.parametrize("scale", [0.0, 2.0**-140, 1e-30, 1e30])
def test_gradients_of_any_size_are_clipped_as_on_the_host(scale: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path)
    feedback, codec = get_feedback("dgc:clip=1e-3"), Few()
    verdict = check(get_codec("fp16"), CPU)
    assert verdict is not None and verdict.on_device is not None
    on_host, homes = feedback.init(SIZE), feedback.init(SIZE)
    segment = DeviceSegment({repr(codec): verdict.on_device}, CPU, feedback, (SIZE,), homes)
    for step in (1, 2, 3):
        x, key = gradient(step) * np.float32(scale), Key.derive(step, "clip")
        expected = feedback.push(x, on_host, codec, key, context=Context(4))
        found = segment.push(
            [(0, torch.from_numpy(x[:700].copy())), (700, torch.from_numpy(x[700:].copy()))],
            codec, key, np.empty(codec.max_nbytes((SIZE,)), np.uint8), Context(4),
        )  # fmt: skip
        assert found.data.tobytes() == expected.data.tobytes()
    segment.settle()
    for name, memory in on_host.items():
        assert homes[name].tobytes() == memory.tobytes(), name
    assert on_host["velocity"].any() == (scale > 0)


def test_rules_of_ones_own_are_the_hosts() -> None:
    class Mine(NoFeedback):
        id = "mine"

    assert rule_of(Mine()) is None and rule_of(get_feedback("dgc:clip=1")) is not None


@with_gxx
@pytest.mark.parametrize("rule", ["ef", "none", "momentum", "dgc"])
def test_phases_whose_codecs_need_more_room_keep_the_memories(rule: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check that memories survive changes of codec between phases: fp16 and scaledsign code one row at a time, terngrad five."""
    install(monkeypatch, tmp_path)
    feedback = get_feedback(rule)
    codecs = [get_codec(spec) for spec in ("fp16", "terngrad", "scaledsign", "terngrad")]
    verdicts = {repr(codec): check(codec, CPU) for codec in codecs}
    there = {
        spec: verdict.on_device for spec, verdict in verdicts.items() if verdict is not None and verdict.on_device is not None
    }
    on_host, homes = feedback.init(SIZE), feedback.init(SIZE)
    segment = DeviceSegment(there, CPU, feedback, (SIZE,), homes)
    for step, codec in enumerate(codecs, 1):
        x, key = gradient(step), Key.derive(step, "rules")
        expected = feedback.push(x, on_host, codec, key, context=Context(4, 0.5))
        pieces = [(0, torch.from_numpy(x.copy()))]
        found = segment.push(pieces, codec, key, np.empty(codec.max_nbytes((SIZE,)), np.uint8), Context(4, 0.5))
        assert found.data.tobytes() == expected.data.tobytes(), step
    segment.settle()
    for name, memory in on_host.items():
        assert homes[name].tobytes() == memory.tobytes(), name
