"""A gradient that is not finite leaves the residuals intact."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import NonFiniteGradientError, NonFinitePartError
from psnode.exchange.sender import GradientSender
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan
from psnode.protocol.channel import FrameChannel
from psnode.protocol.round import Round
from psnode.protocol.wire import Frame, Kind
from psnode.transport.loopback import loopback_group
from tests.exchange.given import Given

CODEC = "topk:ratio=0.05"
DENSE = ["scaledsign:bucket=64", "onebit", "tbq:tau=0.01", "qsgd", "terngrad"]


def plan(codec: str) -> Plan:
    segments = [[codec, 0, [5000]], [codec, 5000, [3000]], ["identity", 8000, [7]]]
    return Plan.from_dict({"tensors": [["a", [50, 100]], ["b", [30, 100]], ["c", [7]]], "groups": [segments]})


def step(sender: GradientSender, number: int) -> None:
    sender.begin(Round.after(number - 1), measure=False)
    sender.push(0)
    sender.drain()


@pytest.fixture
def given() -> Given:
    return Given(np.random.default_rng(1).standard_normal(8007).astype(np.float32), pieces=2)


@pytest.fixture
def ends() -> tuple[FrameChannel, FrameChannel]:
    first, second = loopback_group(2)
    return FrameChannel(first), FrameChannel(second)


@pytest.fixture
def sender(given: Given, ends: tuple[FrameChannel, FrameChannel], request: pytest.FixtureRequest) -> Iterator[GradientSender]:
    codec = getattr(request, "param", CODEC)
    scheme = resolve(Config(scheme="dense", codec=codec, feedback="ef"))
    groups = plan(codec)
    targets = [[0]] * len(groups.groups)
    sender = GradientSender(Coding(groups, scheme), ends[1], targets, given, seed=1, lr=lambda step: 0.1, steps_per_epoch=9)  # type: ignore[arg-type]
    yield sender
    sender.close()


def residual(sender: GradientSender) -> np.ndarray:
    state = sender.state()
    return np.concatenate([state["feedback/residual/a"].numpy(), state["feedback/residual/b"].numpy()])


def received(master: FrameChannel) -> tuple[Kind, bytes]:
    frame = master.next(10)
    assert isinstance(frame, Frame)
    return frame.kind, bytes(frame.body)


@pytest.mark.parametrize("place", [2500, 7600, 8003])
def test_a_gradient_that_is_not_finite_changes_no_memory(
    place: int, given: Given, ends: tuple[FrameChannel, FrameChannel], sender: GradientSender
) -> None:
    """Check that memories stay unchanged if a value is infinite: in the first segment, in the second part of the second
    segment, or in the segment that is sent uncoded.
    """
    step(sender, 1)
    assert received(ends[0])[0] is Kind.GRADIENT
    before = residual(sender)
    good = given.vector[place]
    given.vector[place] = np.inf
    step(sender, 2)
    kind, message = received(ends[0])
    assert kind is Kind.SKIP_STEP
    assert f"inf at flat index {place}:" in message.decode()
    np.testing.assert_allclose(residual(sender), before, rtol=0, atol=1e-6)
    given.vector[place] = good
    step(sender, 3)
    assert received(ends[0])[0] is Kind.GRADIENT
    given.vector[place] = np.nan
    step(sender, 4)
    step(sender, 5)
    with pytest.raises(NonFiniteGradientError):
        step(sender, 6)
    assert np.isfinite(residual(sender)).all()


@pytest.mark.parametrize("sender", [CODEC, f"{CODEC}+fp16", f"{CODEC}+scaledsign", f"{CODEC}+lss:refit=5", *DENSE], indirect=True)
def test_huge_values_beside_a_nan_are_not_sent_later(
    given: Given, ends: tuple[FrameChannel, FrameChannel], sender: GradientSender
) -> None:
    """Check that huge values in a gradient with a NaN do not enter the residual, neither when payloads are added back to it
    nor when codebooks are fitted.
    """
    good = given.vector.copy()
    given.vector[7], given.vector[99], given.vector[7900] = 1e30, 1.2345e24, np.nan
    step(sender, 1)
    assert received(ends[0])[0] is Kind.SKIP_STEP
    given.vector[:] = good
    step(sender, 2)
    assert received(ends[0])[0] is Kind.GRADIENT
    assert np.abs(residual(sender)).max() < 10


def test_a_residual_that_overflows_is_an_error_and_nothing_to_skip(given: Given, sender: GradientSender) -> None:
    given.vector[:5000] = 2e38
    step(sender, 1)
    with pytest.raises(NonFiniteGradientError) as caught:
        step(sender, 2)
    assert not isinstance(caught.value, NonFinitePartError)


def test_what_a_round_of_several_steps_did_not_use_returns_by_its_last_step(given: Given, sender: GradientSender) -> None:
    """Check that only the round's last step returns its gradient. In the first round residual + payload = gradient, so the
    whole gradient returns.
    """
    now = Round(0, 1, steps=3)
    sender.begin(now, measure=False)
    sender.push(0)
    sender.drain()
    kept = residual(sender)
    assert not np.allclose(kept, given.vector[: kept.size], atol=1e-2)
    for step in (1, 2):
        sender.give_back(step, [0])
    np.testing.assert_array_equal(residual(sender), kept)
    sender.give_back(3, [0])
    np.testing.assert_allclose(residual(sender), given.vector[: kept.size], rtol=0, atol=1e-6)
