"""The value of each buffer for a checkpoint, combined from the values of the workers."""

from __future__ import annotations

import math

import torch

from psnode.master.checkpoints.buffers import combined


def test_statistics_are_combined_by_their_rule_and_everything_else_stays_to_the_bit() -> None:
    nan = torch.tensor([math.nan, 0.1, -0.0])
    states = {
        rank: {
            "buffer/mean": torch.tensor([float(rank), 4.0]),
            "buffer/seen": torch.tensor(10 - rank),
            "buffer/table": torch.tensor([2**53 + 1, -1]),
            "buffer/constant": nan.clone(),
        }
        for rank in (3, 1, 2)
    }
    found, differing = combined(states, {"mean": "mean", "seen": "max"})
    assert differing == []
    assert found["mean"].tolist() == [2.0, 4.0]
    assert found["seen"].tolist() == 9
    assert found["table"].tolist() == [2**53 + 1, -1]
    assert found["constant"].view(torch.int32).equal(nan.view(torch.int32))


def test_what_should_agree_and_does_not_is_named_and_never_averaged() -> None:
    states = {2: {"buffer/a": torch.tensor([1.0, 2.0])}, 1: {"buffer/a": torch.tensor([1.0, -2.0])}}
    found, differing = combined(states, {})
    assert differing == ["a"]
    assert found["a"].tolist() == [1.0, -2.0]  # rank 1's value, for any order of arrival
    assert combined({1: {"buffer/a": torch.tensor(0.0)}, 2: {"buffer/a": torch.tensor(-0.0)}}, {})[1] == ["a"]


def test_nobody_has_nothing() -> None:
    assert combined({}, {"mean": "mean"}) == ({}, [])
