"""Average behaviour of every registered codec: no bias, contraction, and error feedback that stays bounded.

Seeds are fixed, so a test passes always or never. If a bound is k standard errors, the test states the share of seeds for which a
correct program would fail.
"""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import Codec, get_codec
from psnode.codecs.rng import Key
from tests.codecs.family import STATED, Floats, forms, gaussian

CLASSES = 8
DECODES = 1000
STEPS = 500


@pytest.fixture(params=[spec for spec in forms() if get_codec(spec).unbiased], scope="module")
def unbiased(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


@pytest.fixture(params=forms(), scope="module")
def contraction(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param).contractive()


def classes_of(x: Floats) -> list[np.ndarray]:
    """Group the coordinates of the flat x by the rank of their magnitude, with zeros in a class of their own."""
    flat = x.reshape(-1)
    order = np.argsort(np.abs(flat), kind="stable")
    filled = order[flat[order] != 0]
    zeros = order[flat[order] == 0]
    return [part for part in (*np.array_split(filled, CLASSES), zeros) if part.size]


@pytest.mark.parametrize("name", STATED)
def test_unbiased_at_every_class_of_coordinates(unbiased: Codec, name: str) -> None:
    """Check that the mean of 1000 decodes is x, in sums over a class of coordinates with the signs of x, within 4 standard
    errors (3e-4 of seeds fail).
    """
    x = STATED[name] if name != "recorded" else STATED[name][:12, :12]
    classes, flat = classes_of(x), x.reshape(-1).astype(np.float64)
    signs = np.where(flat < 0, -1.0, 1.0)
    sums = np.empty((DECODES, len(classes)))
    for number in range(DECODES):
        decoded = unbiased.decode(unbiased.encode(x, Key.derive(number))).reshape(-1)
        assert name != "recorded" or np.isfinite(decoded).all()
        sums[number] = [np.dot(signs[part], decoded[part]) for part in classes]
    expected = np.array([np.dot(signs[part], flat[part]) for part in classes])
    spread = sums.std(axis=0, ddof=1) / np.sqrt(DECODES)
    rounding = 1e-6 * np.abs(flat).sum()
    assert (np.abs(sums.mean(axis=0) - expected) <= 4 * spread + rounding).all()


@pytest.mark.parametrize("name", STATED)
def test_contractive_form_shrinks_what_it_is_given(contraction: Codec, name: str) -> None:
    """Check that the mean of ||x - C(x)||^2 over 20 keys is at most ||x||^2, as a contraction requires, and that some key
    gives a smaller error.
    """
    x = STATED[name]
    losses = []
    for number in range(20):
        decoded = contraction.decode(contraction.encode(x, Key.derive(number)))
        losses.append(np.sum((x.astype(np.float64) - decoded) ** 2) / np.sum(x.astype(np.float64) ** 2))
    assert np.mean(losses) <= 1 + 1e-6
    assert min(losses) < 1


def test_feedback_loses_nothing_and_stays_bounded_over_500_steps(contraction: Codec) -> None:
    """Check that the decoded payloads plus the residual equal the sum of the gradients, and that the residual levels off.

    If nothing were sent, the residual would double in the second half of the steps. With omega above 1 it would explode.
    """
    residual = np.zeros((20, 32), np.float32)
    gradients, sent = np.zeros((20, 32)), np.zeros((20, 32))
    lengths = np.empty(STEPS)
    for step in range(STEPS):
        gradient = gaussian(20, 32, seed=step % 50) + np.float32(0.1)
        gradients += gradient
        residual += gradient
        payload = contraction.encode(residual, Key.derive(step), error=residual)
        sent += contraction.decode(payload)
        lengths[step] = np.linalg.norm(residual)
    np.testing.assert_allclose(sent + residual, gradients, atol=1e-5 * STEPS)
    assert lengths[STEPS // 2 :].max() <= 1.6 * lengths[: STEPS // 2].max()
