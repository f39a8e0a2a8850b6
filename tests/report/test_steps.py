"""Columns of records, their cumulative sums, and curves with few points; missing and non-finite numbers are left out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnode.report.steps import columns_of, finite
from tests.report.conftest import record


def test_totals_are_sums_up_to_each_step() -> None:
    steps = columns_of([record(k, uplink_bytes=10 * k, downlink_bytes=k) for k in (1, 2, 3)])
    assert steps.totals("steps").tolist() == [1, 2, 3]
    assert steps.totals("seconds").tolist() == [2, 4, 6]
    assert steps.totals("bytes").tolist() == [11, 33, 66]


def test_a_step_lies_where_the_run_was_when_it_was_finished() -> None:
    steps = columns_of([record(k) for k in (2, 3, 5)])
    assert steps.place("steps", [1, 4]).tolist() == [1, 4]
    assert steps.place("seconds", [0, 1, 2, 4, 5, 99]).tolist() == [0, 0, 2, 4, 6, 6]
    assert columns_of([]).place("bytes", [7]).tolist() == [7]


def test_what_some_steps_do_not_tell_is_left_out() -> None:
    steps = columns_of([record(1, gradient_norm=3.0), record(2), record(3, loss=None), record(4, metrics={"top1": 0.5})])
    assert steps.known("gradient_norm").tolist() == [3]
    assert steps.curve("loss").steps.tolist() == [1, 2, 4]
    assert steps.column("metrics.top1")[3] == 0.5
    assert np.isnan(steps.column("metrics.top1")[:3]).all()
    assert steps.column("nothing").size == 4


@pytest.mark.parametrize("value", [None, True, "1", [], {}, math.nan, math.inf, 10**400])
def test_what_is_no_finite_number_is_untold(value: Any) -> None:
    assert finite(value) is None
    assert columns_of([record(1, loss=value)]).known("loss").size == 0


@given(st.lists(st.floats(-1e6, 1e6), max_size=90), st.integers(1, 40))
def test_buckets_of_a_curve_cover_every_step_once(values: list[float], most: int) -> None:
    curve = columns_of([record(k, loss=value) for k, value in enumerate(values, 1)]).curve("loss", most)
    assert curve.steps.size == min(most, len(values))
    first = 0
    for last, mean, low, high in zip(*curve, strict=True):
        bucket = values[first : int(last)]
        assert (low, high) == (min(bucket), max(bucket))
        assert mean == pytest.approx(sum(bucket) / len(bucket), abs=1e-6)
        assert abs(len(bucket) - len(values) / curve.steps.size) < 1
        first = int(last)
    assert first == len(values)
