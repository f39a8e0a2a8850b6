"""The aggregators compared with NumPy's sums, and majority votes with ties over many keys."""

from __future__ import annotations

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from psnode.errors import ConfigurationError
from psnode.exchange.shard.aggregator import Aggregator, get_aggregator

Array = np.ndarray


def gradients(workers: int, size: int = 1000) -> list[Array]:
    return [np.random.default_rng(worker).standard_normal(size).astype(np.float32) for worker in range(workers)]


def reduced(aggregator: Aggregator, spec: str, parts: list[Array], seed: int = 0) -> Array:
    """Return the gradient to apply if every worker sends its part, coded by `spec`."""
    codec, out = get_codec(spec), np.zeros(parts[0].size, np.float32)
    for worker, part in enumerate(parts):
        aggregator.add(codec, codec.encode(part, Key.derive(seed, worker + 1)), out)
    return aggregator.finish(out, len(parts), Key.derive(seed, "vote")) * out


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_mean_is_the_mean_of_the_gradients(workers: int) -> None:
    parts = gradients(workers)
    np.testing.assert_allclose(reduced(get_aggregator("mean"), "identity", parts), np.mean(parts, axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", ["sign", "identity", "scaledsign", "bf16"])
@pytest.mark.parametrize("workers", [1, 3, 4, 7])
def test_majority_is_the_sign_that_most_workers_sent(workers: int, spec: str) -> None:
    parts = gradients(workers)
    votes = np.sum([np.sign(part) for part in parts], axis=0)
    vote = reduced(get_aggregator("majority"), spec, parts)
    np.testing.assert_array_equal(vote[votes != 0], np.sign(votes[votes != 0]))
    assert set(vote.tolist()) == {-1.0, 1.0}


def test_votes_count_heads_and_not_magnitudes() -> None:
    parts = [np.array([1e30, -1e-30], np.float32), np.array([-1, 1], np.float32), np.array([-1e-20, 2], np.float32)]
    assert reduced(get_aggregator("majority"), "identity", parts).tolist() == [-1, 1]


def test_ties_fall_either_way_alike_often() -> None:
    """Check over 500 keys that the votes of two workers who disagree at 100 coordinates sum to 0, within 4.5 standard errors
    at each coordinate.

    A share of 7e-4 of the seeds would fail.
    """
    one = gradients(1, 100)[0]
    sums = np.sum([reduced(get_aggregator("majority"), "sign", [one, -one], seed) for seed in range(500)], axis=0)
    assert np.abs(sums).max() < 4.5 * np.sqrt(500)
    assert np.abs(sums.sum()) < 4.5 * np.sqrt(500 * 100)


def test_coordinates_that_are_zero_for_all_do_not_drift() -> None:
    """Check over 500 keys that updates from four workers' zeros, of both signs, sum to no more than a random walk does; 7e-4
    of the seeds would fail.
    """
    zeros = [np.zeros(100, np.float32), np.full(100, -0.0, np.float32)] * 2
    for spec in ("sign", "identity"):
        sums = np.sum([reduced(get_aggregator("majority"), spec, zeros, seed) for seed in range(500)], axis=0)
        assert np.abs(sums).max() < 4.5 * np.sqrt(500)


def test_one_worker_with_a_gradient_outweighs_the_zeros_of_the_others_on_average() -> None:
    """Check one vote for +1 with two random votes: the sum is 1 + {-2, 0, 0, 2}, and so positive in 3 of 4 cases.

    There are 4000 coordinates, within 4.5 standard errors; a share of 7e-6 of the seeds would fail.
    """
    parts = [np.ones(4000, np.float32), np.zeros(4000, np.float32), np.zeros(4000, np.float32)]
    up = np.mean(reduced(get_aggregator("majority"), "sign", parts) > 0)
    assert abs(up - 0.75) < 4.5 * np.sqrt(0.75 * 0.25 / 4000)


def test_the_same_key_decides_alike() -> None:
    parts = [np.zeros(1000, np.float32)]
    first, again, other = (reduced(get_aggregator("majority"), "sign", parts, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_a_vote_without_a_coin_is_refused() -> None:
    with pytest.raises(TypeError, match="rng"):
        get_aggregator("majority").finish(np.zeros(3, np.float32), 2)


def test_an_unknown_aggregator_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ConfigurationError, match="mean, majority"):
        get_aggregator("median")
