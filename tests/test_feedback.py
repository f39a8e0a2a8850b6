"""Feedback rules: what is remembered, and what it adds up to."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.errors import ConfigurationError
from psnode.feedback import ErrorFeedback, NoFeedback, get_feedback

SPECS = ["fp16", "bf16", "qsgd:levels=1,bucket=64", "qsgd:levels=15,bucket=512", "svd:rank=2"]


@pytest.mark.parametrize("spec", SPECS)
def test_error_feedback_loses_nothing(spec: str) -> None:
    """Sum of what was sent + residual = sum of the gradients, to the rounding of 40 float32 additions."""
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
    """A contraction of factor 1 - delta keeps the residual below (1 - delta)/delta times the largest gradient."""
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
    assert rule.init(10) == {} and rule.form(codec) is codec


def test_unknown_rules_are_refused_with_the_choices() -> None:
    with pytest.raises(ConfigurationError, match="none, ef"):
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
