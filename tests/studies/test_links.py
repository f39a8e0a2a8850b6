"""Bytes of links compared with those of the routes: sizes of frames by hand, and counts that differ."""

from __future__ import annotations

from typing import Any

from psnode.plans.groups import Group, Plan, Segment, Tensor
from psnode.plans.roles import Layout
from studies.harness import page
from studies.links import STUDY, compared, frame_bytes

PLAN = Plan((Tensor("w", (2, 5)), Tensor("b", (10,))), tuple(Group(n, (Segment(n, "identity", 10 * n, (10,)),)) for n in (0, 1)))
FRAME = 52 + 4 + 4 + 8 + 4 + 40


def test_a_frame_has_a_header_and_for_each_segment_a_length_its_form_and_its_values() -> None:
    assert frame_bytes([(10,)]) == FRAME
    assert frame_bytes([(2, 5), (3,)]) == 52 + 4 + (4 + 8 + 2 * 4 + 40) + (4 + 8 + 4 + 12)


def summary(**changes: int) -> dict[str, Any]:
    """Return the summary of three steps of a star of two workers, with changed counts of the master."""
    master = {"gradients_out": 0, "weights_out": 12 * FRAME, "gradients_in": 12 * FRAME, "weights_in": 0, **changes}
    worker = {"gradients_out": 6 * FRAME, "weights_out": 0, "gradients_in": 0, "weights_in": 6 * FRAME}
    return {"link_bytes": {"steps": 3, "ranks": {"0": master, "1": worker, "2": worker}}}


def test_counts_are_compared_with_the_routes_rank_by_rank() -> None:
    right = compared(PLAN, Layout(2), "star", summary())
    assert right == {"busiest": 0, "way": "in", "expected": 4 * FRAME, "counted": 4 * FRAME, "counts": 12, "wrong": 0}
    wrong = compared(PLAN, Layout(2), "star", summary(gradients_in=12 * FRAME + 3))
    assert (wrong["wrong"], wrong["counted"]) == (1, 4 * FRAME + 1)


def test_a_job_with_other_weights_or_other_bytes_does_not_pass() -> None:
    row = {"workers": 2, "topology": "star", **compared(PLAN, Layout(2), "star", summary()), "hash": "a", "same": True}
    result = {"network": "LeNet", "steps": 3, "date": "2026-01-01", "cpu": "a processor", "cores": 2, "rows": [row]}
    assert STUDY.passed(result)
    assert "| 2 | star | rank 0 in | 448 | 448 | 0 of 12 | equal |" in page(STUDY, result)
    for change in ({"same": False}, {"wrong": 1}):
        assert not STUDY.passed({**result, "rows": [row, {**row, **change}]})
