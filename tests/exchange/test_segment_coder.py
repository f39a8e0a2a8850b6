"""Codebooks are fitted to the values coded at the first of every k steps, and used for the next k - 1 steps."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from psnode.exchange.segment_coder import SegmentCoder
from psnode.feedback import get_feedback
from psnode.plans.coding import SegmentCoding
from psnode.plans.groups import Segment

SPEC = "lss:bits=3,refit=3"
SIZE = 5000


def coder_of(spec: str = SPEC, feedback: str = "ef", warmup: tuple[float, ...] = ()) -> SegmentCoder:
    return SegmentCoder(SegmentCoding.of(Segment(0, spec, 0, (SIZE,)), get_feedback(feedback), warmup))


def gradient(step: int) -> np.ndarray:
    """Return values whose distribution changes from step to step."""
    x = np.random.default_rng(step).standard_normal(SIZE)
    return (np.sign(x) * np.abs(x) ** (1 + step / 3)).astype(np.float32)


def pushed(coder: SegmentCoder, step: int, phase: int = 0) -> bytes:
    key, codec = Key.derive(9, step), coder.codec(phase, step)
    payload = coder.feedback.push(gradient(step), coder.state, codec, key)
    coder.fit(gradient(step), payload, key, phase, step)
    return payload.to_bytes()


@pytest.mark.parametrize("feedback", ["none", "ef"])
def test_codebooks_serve_as_many_steps_as_were_asked_for(feedback: str) -> None:
    coder, residual, fitted = coder_of(feedback=feedback), np.zeros(SIZE, np.float32), get_codec(SPEC)
    for step in range(1, 8):
        x, key = gradient(step) + residual, Key.derive(9, step)
        codec = get_codec(SPEC) if step in (1, 4, 7) else fitted
        expected = codec.encode(x, key)
        assert pushed(coder, step) == expected.to_bytes()
        assert (expected.to_bytes() != get_codec(SPEC).encode(x, key).to_bytes()) == (step not in (1, 4, 7))
        if feedback == "ef":
            residual = x - codec.decode(expected)
            x = residual + codec.decode(expected)  # as far as it is known after the push
        if codec is not fitted:
            fitted = get_codec(SPEC).fit(x, key)


def test_what_a_checkpoint_holds_is_enough_to_go_on() -> None:
    first, second = coder_of(), coder_of()
    for step in (1, 2):
        pushed(first, step)
    for name, memory in second.state.items():
        memory[:] = first.state[name]
    second.codebook[:] = first.codebook
    second.restore()
    assert [pushed(second, step) for step in (3, 4, 5)] == [pushed(first, step) for step in (3, 4, 5)]


def test_during_the_warm_up_of_a_sparsifier_every_step_is_fitted_by_itself() -> None:
    spec = "topk:ratio=0.01+lss:bits=2,refit=10"
    coder = coder_of(spec, warmup=(0.25,))
    pushed(coder, 1, phase=0)
    assert repr(coder.codec(0, 2)) == repr(get_codec(spec.replace("0.01", "0.25")))
    pushed(coder, 11, phase=1)
    assert "codebook=," not in repr(coder.codec(1, 12)) + ","
    assert repr(coder.codec(1, 21)) == repr(get_codec(spec))


def test_codecs_without_a_codebook_have_no_memory_for_one() -> None:
    assert coder_of("scaledsign").codebook.size == coder_of("lss").codebook.size == 0


def test_a_rescaled_memory_is_in_units_of_the_last_push_or_of_the_step_before_if_there_was_none() -> None:
    coder = coder_of("topk:ratio=0.5", "ef:rescale=true")
    given = [(0.125, 0.5), (0.25, 1.0), (0.0, 1.0), (0.5, 0.0)]  # learning rates of a step and of the step before
    assert [coder.context(3, *rates).lr_ratio for rates in given] == [4, 0.5, 1, 0.5]
