"""Senders whose segments are coded on a device and on the host: the same frames and memories, also after errors."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import NonFiniteGradientError
from psnode.exchange.sender import GradientSender
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan
from psnode.protocol.channel import FrameChannel
from psnode.protocol.round import Round
from psnode.protocol.wire import Frame, Kind
from psnode.transport.loopback import loopback_group
from tests.exchange.given import Given
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.hosted import GXX

pytestmark = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
TENSORS = [["a", [50, 100]], ["b", [30, 100]], ["c", [7]]]
SEGMENTS = [["fp16", 0, [5000]], ["bf16", 5000, [3000]], ["identity", 8000, [7]]]
FORMS = [["contractive(qsgd)", 0, [5000]], ["contractive(minmax)", 5000, [3000]], ["identity", 8000, [7]]]


class GivenThere(Given):
    """Gradients that also exist on a device. `kept`: tensors whose gradients are to stay on the device."""

    kept: frozenset[str] = frozenset()
    device = CPU

    def keep(self, names: frozenset[str]) -> None:
        self.kept = names

    def pieces(self, start: int, stop: int) -> list[tuple[int, torch.Tensor]]:
        return [(place, torch.tensor(part, device=self.device)) for place, part in self.parts(start, stop)]


class Both:
    """A sender on the host and a sender on a device, with the same gradients."""

    def __init__(self, feedback: str, device: torch.device = CPU, segments: list[list[object]] = SEGMENTS) -> None:
        self.given = GivenThere(np.random.default_rng(1).standard_normal(8007).astype(np.float32), pieces=2)
        self.given.device = device
        self.masters: list[FrameChannel] = []
        self.senders: list[GradientSender] = []
        codec = "topk" if feedback.startswith("dgc") else "fp16"  # dgc needs a sparse codec; the plan has codecs of its own
        scheme = resolve(Config(scheme="dense", codec=codec, feedback=feedback))
        for _ in range(2):
            first, second = loopback_group(2)
            plan = Plan.from_dict({"tensors": TENSORS, "groups": [segments]})
            sender = GradientSender(
                Coding(plan, scheme), FrameChannel(second), [[0]], self.given,  # type: ignore[arg-type]
                seed=1, lr=lambda step: 0.1 / (step + 1), steps_per_epoch=9,
            )  # fmt: skip
            self.masters.append(FrameChannel(first))
            self.senders.append(sender)
        self.verdicts = self.senders[1].code_on(device)

    def step(self, number: int) -> tuple[Kind, bytes]:
        """Take a step with a new gradient, and return the frame that both senders sent."""
        return self.sent(number, *self.senders)

    def sent(self, number: int, *senders: GradientSender) -> tuple[Kind, bytes]:
        found = []
        for sender, master in zip(senders, self.masters, strict=True):
            sender.begin(Round.after(number - 1), measure=True)
            sender.push(0)
            sender.drain()
            frame = master.next(10)
            assert isinstance(frame, Frame)
            found.append((frame.kind, bytes(frame.body)))
        assert found[0] == found[1]
        if found[0][0] is Kind.GRADIENT:
            assert senders[0].relative_error == senders[1].relative_error
        return found[0]

    def residuals(self) -> list[np.ndarray]:
        return [np.concatenate([value.numpy().copy() for value in sender.state().values()]) for sender in self.senders]


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    return install(monkeypatch, tmp_path)


@pytest.fixture
def both(cupy: FakeCupy, request: pytest.FixtureRequest) -> Iterator[Both]:
    found = Both(getattr(request, "param", "ef"))
    cupy.launched.clear()
    yield found
    for sender in found.senders:
        sender.close()


RULES = [
    *(
        "none",
        "ef",
        "ef:decay=0.5",
        "ef:rescale=true",
        "ema",
        "ema:beta=0.3",
        "dgc:momentum=0.9",
        "dgc:momentum=0.7,nesterov=true",
    ),
    *("momentum:momentum=0.9", "momentum:momentum=0.7,nesterov=true"),
    *("dgc:momentum=0.9,clip=1", "momentum:momentum=0.9,clip=30"),
]


@pytest.mark.sweep
@pytest.mark.parametrize("both", RULES, indirect=True)
def test_frames_errors_and_residuals_are_those_of_the_host(both: Both, cupy: FakeCupy) -> None:
    assert both.given.kept == {"a", "b"}
    for number in range(1, 5):
        both.given.vector[:] = np.random.default_rng(number).standard_normal(8007)
        both.given.vector[number] = -0.0
        assert both.step(number)[0] is Kind.GRADIENT
    assert cupy.launched == ["encode"] * 8
    if both.senders[0].state():
        host, device = both.residuals()
        assert np.array_equal(host.view(np.uint32), device.view(np.uint32)) and host.any()


def test_contractive_forms_are_those_of_the_host(cupy: FakeCupy) -> None:
    both = Both("ef", segments=FORMS)
    assert both.given.kept == {"a", "b"}, both.verdicts
    cupy.launched.clear()
    for number in range(1, 5):
        both.given.vector[:] = np.random.default_rng(number).standard_normal(8007) * 10.0 ** (number - 2)
        assert both.step(number)[0] is Kind.GRADIENT
    assert cupy.launched.count("measure") == 8 and "encode" not in cupy.launched
    host, device = both.residuals()
    assert np.array_equal(host.view(np.uint32), device.view(np.uint32)) and host.any()
    both.given.vector[2500] = np.inf
    assert both.step(5)[0] is Kind.SKIP_STEP
    assert np.array_equal(both.residuals()[1], device)
    for sender in both.senders:
        sender.close()


@pytest.mark.parametrize("place", [10, 2500, 7600])
def test_a_gradient_that_is_not_finite_changes_no_residual(both: Both, place: int) -> None:
    both.step(1)
    [before, same] = both.residuals()
    assert np.array_equal(before, same)
    good, both.given.vector[place] = both.given.vector[place], np.inf
    kind, message = both.step(2)
    assert kind is Kind.SKIP_STEP and str(place) in message.decode()
    host, device = both.residuals()
    assert np.array_equal(device, before)
    np.testing.assert_allclose(host, before, atol=1e-6)  # the host has undone its additions, except for rounding
    both.given.vector[place] = good


def test_a_sum_that_is_not_finite_is_an_error(both: Both) -> None:
    both.given.vector[3] = 3e38
    for number in (1, 2):  # fp16 sends at most 65504 of this value
        if number == 1:
            both.step(number)
            continue
        for sender in both.senders:
            sender.begin(Round.after(number - 1), measure=False)
            sender.push(0)
            with pytest.raises(NonFiniteGradientError, match=r"inf.* at .*3"):
                sender.drain()


@pytest.mark.parametrize("factor", [0.0, 0.25])
def test_what_the_master_gives_back_returns_to_the_residual(both: Both, factor: float) -> None:
    for number in (1, 2, 3):
        both.step(number)
        for sender in both.senders:
            sender.give_back_parts(number, {0: np.float32(factor)})
    host, device = both.residuals()
    assert np.array_equal(host.view(np.uint32), device.view(np.uint32))
    assert np.abs(host).max() > 1  # whole gradients are kept in this memory


def test_residuals_that_are_loaded_are_coded_next(both: Both) -> None:
    both.step(1)
    saved = {name: torch.full_like(value, 2.0) for name, value in both.senders[0].state().items()}
    for sender in both.senders:
        sender.load_state(saved)
    both.step(2)
    host, device = both.residuals()
    assert np.array_equal(host, device)


def test_a_codec_without_a_formula_and_a_codebook_of_the_hosts_are_told_once(cupy: FakeCupy) -> None:
    for spec, reason in (("lss", "it has no kernels"), ("lss:refit=10", "its codebook is the host's")):
        groups = [[[spec, 0, [5000]]], [[spec, 5000, [3000]]], [["identity", 8000, [7]]]]
        plan = Plan.from_dict({"tensors": TENSORS, "groups": groups})
        scheme = resolve(Config(scheme="dense", codec="topk", feedback="ef"))
        given = GivenThere(np.zeros(8007, np.float32))
        sender = GradientSender(
            Coding(plan, scheme), FrameChannel(loopback_group(2)[1]), [[0], [0], [0]], given,  # type: ignore[arg-type]
            seed=1, lr=lambda step: 0.1, steps_per_epoch=9,
        )  # fmt: skip
        [verdict] = sender.code_on(CPU)
        assert verdict.line.startswith("lss") and reason in verdict.line
        assert given.kept == frozenset() and cupy.launched == []
        sender.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or importlib.util.find_spec("cupy") is None, reason="no CUDA device or no cupy")
@pytest.mark.parametrize("feedback", RULES)
def test_frames_and_residuals_on_a_gpu(feedback: str) -> None:
    both = Both(feedback, torch.device("cuda", 0))
    assert both.given.kept == {"a", "b"}, both.verdicts
    for number in range(1, 5):
        both.given.vector[:] = np.random.default_rng(number).standard_normal(8007)
        assert both.step(number)[0] is Kind.GRADIENT
        for sender in both.senders:
            sender.give_back(number, {0} if number == 2 else ())
    if both.senders[0].state():
        host, device = both.residuals()
        assert np.array_equal(host.view(np.uint32), device.view(np.uint32))
    for sender in both.senders:
        sender.close()
