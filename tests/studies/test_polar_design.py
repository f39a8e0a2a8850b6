"""polar-design: invariants of the polar transform, and designs that depend on the seed alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from psnode.codecs.polarcodes.designs import CHANNELS, RATES
from studies.harness import main
from studies.polar_design import STUDY, entropies, transform
from tests.codecs.polar_oracle import masks

RATE = 1.0


def entropies_of_a_value(levels: int, step: float, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the entropy, in bits, of each bit given the bits below it, by summation; and the same entropies given also x, by
    quadrature.
    """
    k = np.arange(2**levels)
    points = (k - (k.size - 1) / 2) * step
    p = np.exp(-(points**2) / (2 * (1 - noise)))
    p /= p.sum()

    def joint(weights: np.ndarray, level: int) -> float:
        """Return the entropy of the lowest `level` bits, times the total weight."""
        sums = np.bincount(k % 2**level, weights)
        return float(-np.sum(sums * np.log2(np.maximum(sums / sums.sum(), 1e-300))))

    priors = np.diff([joint(p, level) for level in range(levels + 1)])
    posts = [
        quad(lambda x, level=level: joint(p * norm.pdf(x, points, noise**0.5), level), -7, 7, limit=200)[0]
        for level in range(levels + 1)
    ]
    return priors, np.diff(posts)


def test_the_entropies_of_all_bits_add_up_to_those_of_the_values() -> None:
    """Check the sum of the bits' entropies by the chain rule, since the transform is one to one. Over 1024 blocks of 64,
    sums scatter by .5 %, and the approximation f loses as much.
    """
    channel = CHANNELS[RATE]
    found = entropies(channel, 6, 32, seed=3).mean(axis=2)
    priors, posts = entropies_of_a_value(*channel)
    np.testing.assert_allclose(found[:, 1], priors, rtol=0.01, atol=0.002)
    np.testing.assert_allclose(found[:, 0], posts, rtol=0.03, atol=0.002)


def test_the_transform_is_the_kronecker_power_of_its_kernel() -> None:
    """Compare the transform with the rows of the fourth Kronecker power of G = [[1, 0], [1, 1]], lane by lane."""
    power = np.array([[1]])
    for _ in range(4):
        power = np.kron(power, [[1, 0], [1, 1]])
    words = np.random.default_rng(1).integers(2**32, size=16, dtype=np.uint32)
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    expected = power.T @ bits % 2
    np.testing.assert_array_equal((transform(words)[:, None] >> np.arange(32, dtype=np.uint32)) & 1, expected)


@pytest.mark.parametrize("rate", RATES)
def test_the_shipped_design_is_what_its_command_makes(tmp_path: Path, rate: float) -> None:
    command = ["--rate", f"{rate:g}", "--log-length", "8", "--output", str(tmp_path)]
    assert main(STUDY, command) == 0
    with np.load(tmp_path / f"rate-{rate:g}.npz") as made:
        found = np.unpackbits(made["n8"], axis=-1).astype(bool)
    np.testing.assert_array_equal(found, masks(round(2 * rate), 8))


def test_a_rate_that_no_channel_is_known_for_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(STUDY, ["--rate", "0.7", "--output", str(tmp_path)]) == 2
    assert "--rate must be one of" in capsys.readouterr().err
