"""The critical path of a step, from made-up spans, and from the spans of a run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnode.cli import main
from psnode.report.critical import WorkSpan, bounds, means, paths, spans_of, typical
from psnode.report.run import read


def master(name: str, start: float, stop: float, **facts: int) -> WorkSpan:
    return WorkSpan(0, 0, name, start, stop, facts)


def worker(rank: int, name: str, start: float, stop: float, **facts: int) -> WorkSpan:
    return WorkSpan(rank, rank, name, start, stop, facts)


def step(late: int) -> list[WorkSpan]:
    """Return step 1 from second 0 to 10; worker `late`'s gradient arrives last, after the other worker's is decoded."""
    early = 3 - late
    return [
        master("downlink", -0.2, 0.0, version=0),
        worker(late, "wait", 0.0, 1.0, version=0),
        worker(late, "forward_backward", 0.5, 6.0, step=1),  # its first half second is part of the wait
        worker(early, "forward_backward", 0.5, 3.0, step=1),
        master("decode", 3.5, 4.0, sender=early, group=0),
        master("decode", 8.0, 8.5, sender=late, group=0),
        master("update", 8.5, 9.5, version=1),
        master("downlink", 9.5, 10.0, version=1),
    ]


@pytest.mark.parametrize("late", [1, 2])
def test_the_path_leads_through_the_worker_whose_gradient_came_last(late: int) -> None:
    [path] = paths(sorted(step(late), key=lambda span: span.start))
    assert (path.step, path.start, path.stop, path.worker) == (1, 0.0, 10.0, late)
    found = [(part.rank, part.name, part.stop - part.start) for part in path.parts]
    assert found == [
        (late, "wait", 1.0), (late, "forward_backward", 5.0), (late, "up", 2.0),
        (0, "decode", 0.5), (0, "update", 1.0), (0, "downlink", 0.5),
    ]  # fmt: skip
    assert bounds([path]) == {late: 1}


def test_gradients_that_waited_for_an_earlier_rank_do_not_hold_up_the_step() -> None:
    """Check that a gradient is not on the path if it arrived early and waited to be added after a lower rank's: it is
    decoded last, but arrived before the first.
    """
    spans = [span for span in step(1) if span.name != "decode"]
    spans += [master("decode", 8.0, 8.3, sender=1, group=0), master("decode", 8.3, 8.5, sender=2, group=0)]
    [path] = paths(sorted(spans, key=lambda span: span.start))
    assert path.worker == 1


def test_a_master_without_a_pause_bounds_the_step_itself() -> None:
    spans = [span for span in step(2) if span.rank] + [
        master("downlink", -0.2, 0.0, version=0),
        *(master("decode", k, k + 1.0, sender=1, group=k) for k in range(9)),
        master("update", 9.0, 10.0, version=1),
    ]
    [path] = paths(sorted(spans, key=lambda span: span.start))
    assert path.worker is None
    assert means([path]) == pytest.approx({"decode": 9.0, "update": 1.0})


@pytest.mark.parametrize("root", [1, 2, 3])
def test_the_last_update_may_be_on_any_rank_that_also_computes(root: int) -> None:
    """Under a mesh, workers update weights while they compute. The path leads through the passes of the worker whose gradient
    came last, without the updates beside them, and through the work of the rank with the last update.
    """
    late = 2
    moved = [span._replace(rank=root, track=9) if span.rank == 0 else span for span in step(late)]
    beside = [
        WorkSpan(late, 8, "decode", 2.0, 3.0, {"sender": 3, "group": 1}),
        WorkSpan(late, 8, "update", 4.0, 5.0, {"group": 1, "version": 1}),
        WorkSpan(root, 7, "forward_backward", 8.0, 9.9, {"step": 2}),
    ]
    [path] = paths(sorted([*moved, *beside], key=lambda span: span.start))
    assert (path.step, path.root, path.worker) == (1, root, late)
    found = [(part.rank, part.name, part.stop - part.start) for part in path.parts]
    assert found == [
        (late, "wait", 1.0), (late, "forward_backward", 5.0), (late, "up", 2.0),
        (root, "decode", 0.5), (root, "update", 1.0), (root, "downlink", 0.5),
    ]  # fmt: skip


def test_a_step_that_its_root_never_waits_in_is_bounded_by_the_root() -> None:
    spans = [
        WorkSpan(3, 0, "downlink", -0.2, 0.0, {"version": 0}),
        *(WorkSpan(3, 0, "decode", k, k + 1.0, {"sender": 1, "group": k}) for k in range(9)),
        WorkSpan(3, 0, "update", 9.0, 10.0, {"version": 1}),
    ]
    [path] = paths(spans)
    assert (path.worker, path.root) == (None, 3)
    assert bounds([path]) == {3: 1}


NAMES = ("forward_backward", "wait", "apply", "drain", "decode", "update", "downlink", "finish", "checkpoint", "anything")
SPANS = st.builds(
    WorkSpan, st.integers(0, 3), st.integers(0, 2), st.sampled_from(NAMES), st.floats(0, 50), st.floats(0, 50),
    st.fixed_dictionaries({}, optional={name: st.integers(0, 5) for name in ("version", "step", "sender", "group")}),
)  # fmt: skip


@given(st.lists(SPANS, max_size=60))
def test_the_parts_of_any_path_follow_one_another_from_beginning_to_end(spans: list[WorkSpan]) -> None:
    fair = sorted((span for span in spans if span.start <= span.stop), key=lambda span: span.start)
    for path in paths(fair):
        assert path.parts[0].start == path.start
        assert path.parts[-1].stop == path.stop
        assert all(before.stop == after.start for before, after in pairwise(path.parts))
        assert sum(means([path]).values()) == pytest.approx(path.stop - path.start)


@pytest.mark.parametrize(
    "event",
    [{}, {"ph": "X"}, {"ph": "X", "ts": "1", "dur": 1, "pid": 0, "tid": 0, "name": "a", "args": {}},
     {"ph": "X", "ts": 1, "dur": -1, "pid": 0, "tid": 0, "name": "a", "args": {}},
     {"ph": "X", "ts": 1, "dur": 1, "pid": [0], "tid": 0, "name": "a", "args": {}},
     {"ph": "X", "ts": 1, "dur": 1, "pid": 0, "tid": 0, "name": "a", "args": 7}],
)  # fmt: skip
def test_what_is_no_span_is_passed_over(event: dict[str, Any]) -> None:
    assert spans_of([event]) == []


def test_the_paths_of_a_run_follow_each_other_without_gaps(trained: Path) -> None:
    run = read(trained)
    found = paths(spans_of(run.timeline()))
    assert [path.step for path in found] == [2, 3, 4, 5, 6]
    assert sum(bounds(found).values()) == 5
    assert typical(found) in found
    assert [path.stop for path in found[:-1]] == pytest.approx([path.start for path in found[1:]])  # without gaps, by one clock
    assert all(path.stop > path.start for path in found)


def test_the_paths_of_a_mesh_end_on_workers(tmp_path: Path) -> None:
    train = ["train", "--local", "2", "--topology", "mesh", "--network", "FC", "--scheme", "dense", "--batch-size", "8"]
    train += ["--max-steps", "5", "--eval-freq", "0", "--timeline", "--quiet", "--no-tensorboard", "--train-dir", str(tmp_path)]
    assert main(train) == 0
    found = paths(spans_of(read(tmp_path).timeline()))
    assert [path.step for path in found] == [2, 3, 4, 5]
    assert {path.root for path in found} <= {1, 2}
    assert {part.name for path in found for part in path.parts} >= {"forward_backward", "update"}
