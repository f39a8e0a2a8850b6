"""y, a worker's copy of the published weights: tests without training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash

from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from psnode.exchange.replica import Replica
from psnode.plans.groups import Segment

START = np.arange(12, dtype=np.float32)


@pytest.mark.parametrize("here", [True, False], ids=["one memory", "a device's memory"])
def test_a_change_is_in_the_hashed_weights_and_in_those_of_the_model(monkeypatch: pytest.MonkeyPatch, here: bool) -> None:
    monkeypatch.setattr("psnode.exchange.replica._is_host", lambda device: here)
    theta, codec = torch.from_numpy(START.copy()), get_codec("identity")
    replica = Replica(theta)
    change = np.float32([[1, 2], [3, 4]])
    replica.change(Segment(0, "identity", 4, (2, 2)), codec, codec.encode(change, Key.derive(0)))
    expected = START.copy()
    expected[4:8] += [1, 2, 3, 4]
    assert np.array_equal(replica.weights, expected) and np.array_equal(theta.numpy(), expected)
    assert replica.digest() == xxhash.xxh3_64_intdigest(expected.tobytes())


def test_weights_that_came_whole_are_the_models_when_they_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psnode.exchange.replica._is_host", lambda device: False)
    theta = torch.from_numpy(START.copy())
    replica = Replica(theta)
    replica.weights[:6] = 7
    assert np.array_equal(theta.numpy(), START)
    replica.publish(0, 3)
    assert theta.tolist() == [7, 7, 7, *START[3:]]


def test_a_replica_that_was_released_holds_no_memory() -> None:
    replica = Replica(torch.zeros(5))
    replica.release()
    assert replica.weights.size == 0
