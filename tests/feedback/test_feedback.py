"""Feedback rules: their memories, and the sums that the rules conserve."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from psnode.errors import ConfigurationError
from psnode.feedback import RULES, Context, ErrorFeedback, NoFeedback, get_feedback

SPECS = ["fp16", "bf16", "qsgd:levels=1,bucket=64", "qsgd:levels=15,bucket=512", "svd:rank=2"]


@pytest.mark.parametrize("spec", SPECS)
def test_error_feedback_loses_nothing(spec: str) -> None:
    """Check that decoded payloads + residual equal the sum of the gradients, up to the rounding of 40 float32 additions."""
    rule = ErrorFeedback()
    codec = rule.form(get_codec(spec))
    rng = np.random.default_rng(3)
    state = rule.init(64 * 48)
    gradients, sent = np.zeros((64, 48)), np.zeros((64, 48))
    for _ in range(40):
        gradient = rng.standard_normal((64, 48)).astype(np.float32)
        before = gradient.copy()
        payload = rule.push(gradient, state, codec, rng)
        assert np.array_equal(gradient, before)
        gradients += gradient
        sent += codec.decode(payload)
    total = sent + state["residual"].reshape(64, 48)
    assert np.abs(total - gradients).max() < 40 * 2**-24 * 64


@pytest.mark.parametrize("spec", SPECS)
def test_the_residual_stays_bounded_over_500_steps(spec: str) -> None:
    """Check that the residual levels off. In theory, a contraction by 1 - delta keeps it below (1 - delta)/delta times the
    largest gradient.
    """
    rule = ErrorFeedback()
    codec = rule.form(get_codec(spec))
    rng = np.random.default_rng(4)
    state = rule.init(32 * 64)
    norms = []
    for _ in range(500):
        rule.push(rng.standard_normal((32, 64)).astype(np.float32), state, codec, rng)
        norms.append(float(np.linalg.norm(state["residual"])))
    assert max(norms[250:]) < 1.5 * max(norms[50:250])
    assert norms[-1] < 40 * np.sqrt(32 * 64)


def test_without_feedback_there_is_no_memory_and_the_codec_stays_unbiased() -> None:
    rule = NoFeedback()
    codec = get_codec("qsgd")
    assert rule.init(10) == {}
    assert rule.form(codec) is codec


@pytest.mark.parametrize("name", ["dgc:momentum", "ema:beta"])
@pytest.mark.parametrize(("value", "accepted"), [("-0.01", False), ("0", True), ("0.999", True), ("1", False), ("1.5", False)])
def test_a_momentum_is_at_least_zero_and_below_one(name: str, value: str, accepted: bool) -> None:
    if accepted:
        assert f"={float(value)}" in f"{get_feedback(f'{name}={value}')!r},".replace("=0,", "=0.0,").replace(")", "")
    else:
        with pytest.raises(ConfigurationError, match="at least 0 and below 1"):
            get_feedback(f"{name}={value}")


def test_unknown_rules_are_refused_with_the_choices() -> None:
    with pytest.raises(ConfigurationError, match="ef"):
        get_feedback("eff")


@pytest.mark.parametrize("rule", [NoFeedback(), ErrorFeedback()])
def test_what_was_lost_is_the_distance_to_what_was_coded(rule: NoFeedback | ErrorFeedback) -> None:
    codec = rule.form(get_codec("qsgd:levels=3,bucket=64"))
    rng = np.random.default_rng(5)
    state = rule.init(1000)
    coded = np.zeros(1000)
    for _ in range(3):
        gradient = rng.standard_normal(1000).astype(np.float32)
        coded = gradient + (state["residual"].copy() if state else 0.0)
        decoded = codec.decode(rule.push(gradient, state, codec, rng))
        error, energy = rule.lost(gradient, state, decoded)
        assert error == pytest.approx(np.sum((coded - decoded) ** 2), rel=1e-4)
        assert energy == pytest.approx(np.sum(coded**2), rel=1e-4)


def test_dgc_accumulates_momentum_and_forgets_it_where_it_was_sent() -> None:
    """Compare sent values, momentum and velocity with Lin et al., equations 4 to 7, computed by hand for top-1 of 3 values
    and momentum 1/2.
    """
    rule = get_feedback("dgc:momentum=0.5")
    codec = get_codec("topk:ratio=0.34")
    state = rule.init(3)
    steps = [  # gradient, sent values, momentum and velocity afterwards
        ([4, 2, 1], [4, 0, 0], [0, 2, 1], [0, 2, 1]),
        ([1, 1, 0], [0, 4, 0], [1, 0, 0.5], [1, 0, 1.5]),
        ([0, 0, 0], [0, 0, 1.75], [0.5, 0, 0], [1.5, 0, 0]),
    ]
    for gradient, sent, momentum, velocity in steps:
        payload = rule.push(np.array(gradient, np.float32), state, codec, np.random.default_rng(0))
        assert codec.decode(payload).tolist() == sent
        assert (state["momentum"].tolist(), state["velocity"].tolist()) == (momentum, velocity)


def test_dgc_with_everything_sent_is_plain_sgd() -> None:
    rule = get_feedback("dgc:momentum=0.9")
    codec = get_codec("topk:ratio=1")
    state = rule.init(5)
    rng = np.random.default_rng(1)
    for _ in range(4):
        gradient = rng.standard_normal(5).astype(np.float32)
        assert np.array_equal(codec.decode(rule.push(gradient, state, codec, rng)), gradient)


@pytest.mark.parametrize("nesterov", ["false", "true"])
def test_momentum_at_the_sender_adds_up_to_torchs_at_the_master(nesterov: str) -> None:
    """Check that sums of lr u move weights as torch's SGD with momentum does, where u is the vector that dgc sends for dense
    segments.
    """
    import torch

    rule = get_feedback(f"dgc:momentum=0.9,nesterov={nesterov}").dense()
    codec = get_codec("identity")
    state = rule.init(4)
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, nesterov=nesterov == "true")
    ours = np.zeros(4)
    rng = np.random.default_rng(2)
    for _ in range(6):
        gradient = rng.standard_normal(4).astype(np.float32)
        weight.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        ours -= 0.1 * codec.decode(rule.push(gradient, state, codec, rng))
    assert np.allclose(ours, weight.detach().numpy(), atol=1e-5)


def test_dgc_clips_a_segment_to_its_share_of_the_norm() -> None:
    rule = get_feedback("dgc:momentum=0,clip=6")
    state = rule.init(2)
    payload = rule.push(
        np.array([30, 40], np.float32), state, get_codec("topk:ratio=1"), np.random.default_rng(0), None, Context(workers=4)
    )
    assert get_codec("topk:ratio=1").decode(payload).tolist() == pytest.approx([1.8, 2.4])


def test_residuals_are_kept_in_units_of_weights_when_the_learning_rate_changes() -> None:
    rule = get_feedback("ef:rescale=true")
    codec = get_codec("topk:ratio=0.5").contractive()
    state = rule.init(2)
    rng = np.random.default_rng(0)
    rule.push(np.array([4, 1], np.float32), state, codec, rng)
    payload = rule.push(np.zeros(2, np.float32), state, codec, rng, None, Context(lr_ratio=10.0))
    assert codec.decode(payload).tolist() == [0, 10]


def test_decay_shrinks_the_residual() -> None:
    rule = get_feedback("ef:decay=0.5")
    codec = get_codec("topk:ratio=0.5").contractive()
    state = rule.init(2)
    rng = np.random.default_rng(0)
    rule.push(np.array([4, 2], np.float32), state, codec, rng)
    assert codec.decode(rule.push(np.zeros(2, np.float32), state, codec, rng)).tolist() == [0, 1]


def test_the_momentum_average_is_what_is_coded() -> None:
    rule = get_feedback("ema:beta=0.75")
    codec = get_codec("identity")
    state = rule.init(1)
    rng = np.random.default_rng(0)
    sent = [float(codec.decode(rule.push(np.array([g], np.float32), state, codec, rng))[0]) for g in (4, 0, 8)]
    assert sent == [1, 0.75, 2.5625]


@pytest.mark.parametrize("rule", list(RULES))
def test_specs_of_rules_survive_the_round_trip(rule: str) -> None:
    assert get_feedback(repr(get_feedback(rule))) == get_feedback(rule)


@pytest.mark.parametrize(
    "text", ["ef:decay=0", "ef:decay=2", "ef:decay=x", "dgc:momentum=1", "dgc:clip=-1", "ema:beta=1", "ef+ef", "", "ef:speed=1"]
)
def test_bad_specs_of_rules_are_one_typed_line(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        get_feedback(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "topk:ratio=0.05,sampled=true", "randk:ratio=0.1", *SPECS])
def test_a_gradient_in_pieces_is_coded_as_the_whole(rule: str, spec: str) -> None:
    """Compare payloads and memories after each step with those of the whole gradient, which is zero between the pieces."""
    feedback, shape, context = get_feedback(rule), (96, 256), Context(3, 0.5)
    codec = feedback.form(get_codec(spec))
    whole, pieces = feedback.init(96 * 256), feedback.init(96 * 256)
    rng = np.random.default_rng(5)
    for step in range(3):
        gradient = rng.standard_normal(96 * 256).astype(np.float32)
        gradient[1000:1100] = gradient[20_000:] = 0
        bounds = [(0, 1), (1, 1000), (1100, 9000), (9000, 20_000)]
        parts = [(start, gradient[start:stop].copy()) for start, stop in bounds]
        key = Key.derive(step)
        expected = feedback.push(gradient.reshape(shape), whole, codec, key, context=context)
        assert feedback.push_parts(parts, shape, pieces, codec, key, context=context) == expected
        assert all(np.array_equal(whole[name], pieces[name]) for name in whole)
