"""Names of state in a checkpoint: ranges and numbers by tensor, compared with sets of coordinates; and refusals."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.errors import CheckpointError
from psnode.plans.groups import Group, Plan, Segment, Tensor
from psnode.records import checkpoint, state_names
from psnode.records.checkpoint import Checkpoint
from psnode.records.staging import StagedCheckpoint
from psnode.records.state_names import ConstantRange

SIZES = {"a": 7, "empty": 0, "b/c": 1, "d": 12, "e": 5}


def plan_of(*cuts: int, groups: int = 1) -> Plan:
    """Return a plan of the tensors of SIZES, in segments that end at `cuts` and at the end. The first `groups` - 1 segments
    are groups of their own.
    """
    edges = [0, *cuts, sum(SIZES.values())]
    segments = [Segment(i, "identity", low, (high - low,)) for i, (low, high) in enumerate(pairwise(edges))]
    head = [Group(i, (segment,)) for i, segment in enumerate(segments[: groups - 1])]
    tensors = tuple(Tensor(name, (size,)) for name, size in SIZES.items())
    return Plan(tensors, (*head, Group(len(head), tuple(segments[len(head) :]))))


def owners() -> list[tuple[str, int]]:
    """Return the tensor's name and the offset of every coordinate of the flat vector."""
    return [(name, offset) for name, size in SIZES.items() for offset in range(size)]


def test_the_tensors_of_a_segment_are_those_of_its_coordinates() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        plan = plan_of(*sorted(rng.choice(np.arange(1, 25), rng.integers(0, 8), replace=False).tolist()))
        for segment, inside in zip(plan.segments, state_names.overlaps(plan, plan.segments), strict=True):
            expected = owners()[segment.start : segment.stop]
            found = [owners()[place] for where in inside.values() for place in range(where.start, where.stop)]
            assert found == expected
            assert list(inside) == list(dict.fromkeys(name for name, _ in expected))


def test_ranges_of_two_plans_have_one_name_if_and_only_if_they_have_the_same_coordinates() -> None:
    named: dict[str, tuple[int, int]] = {}
    for low in range(25):
        for high in range(low + 1, 26):
            cuts = [cut for cut in (low, high) if 0 < cut < 25]
            plan = plan_of(*cuts)
            index = next(i for i, segment in enumerate(plan.segments) if segment.start == low)
            name = state_names.ranges(plan, plan.segments)[index]
            assert named.setdefault(name, (low, plan.segments[index].stop)) == (low, plan.segments[index].stop)
    assert len(named) == len(set(named.values()))


def test_numbers_of_groups_are_told_by_tensor_and_collected_by_any_other_plan() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        plan = plan_of(*sorted(rng.choice(np.arange(1, 25), 4, replace=False).tolist()))
        values = rng.integers(0, 3, 5).astype(float)
        runs = [ConstantRange(s.start, s.stop, value) for s, value in zip(plan.segments, values, strict=True)]
        told = state_names.spread(plan, runs, torch.float32)
        assert list(told) == [name for name, size in SIZES.items() if size]
        by_coordinate = np.repeat(values, [segment.size for segment in plan.segments])
        assert all(value.numel() in (1, SIZES[name]) for name, value in told.items())
        assert np.concatenate([np.broadcast_to(told[name], size) for name, size in SIZES.items() if size]).tolist() == list(
            by_coordinate
        )
        collected = state_names.collected(plan_of(), {f"x/{name}": value for name, value in told.items()}, "x/")
        assert np.concatenate([np.full(run.stop - run.start, run.value) for run in collected]).tolist() == list(by_coordinate)
        assert all(one.value != other.value for one, other in pairwise(collected))


def published(folder: Path, **facts: object) -> Path:
    staged = StagedCheckpoint(folder, 3)
    staged.add_tensors(checkpoint.MODEL, {"w": torch.zeros(3)})
    return staged.publish({"workers": 2, **facts})


def test_a_newer_layout_is_refused_in_one_line_that_says_what_to_use(tmp_path: Path) -> None:
    path = published(tmp_path, layout=checkpoint.LAYOUT + 1)
    with pytest.raises(CheckpointError, match=r"has layout 3, .* reads layouts up to 2: use the version that wrote it") as told:
        Checkpoint.open(path)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("number", ["2", 0, -1, True, None, 1.5, [2]])
def test_a_layout_that_is_no_number_of_one_is_damage(tmp_path: Path, number: object) -> None:
    with pytest.raises(CheckpointError, match=r"damaged: manifest\.json: its layout is"):
        Checkpoint.open(published(tmp_path, layout=number))


def test_what_is_published_says_its_layout_and_one_that_does_not_is_of_layout_1(tmp_path: Path) -> None:
    path = published(tmp_path)
    manifest = json.loads((path / "manifest.json").read_bytes())
    assert manifest["layout"] == 2
    del manifest["layout"]
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert Checkpoint.open(path).layout == 1


OLD: dict[str, dict[str, torch.Tensor]] = {
    checkpoint.OPTIMIZER: {
        "0/exp_avg": torch.arange(4.0), "0/step": torch.tensor(2.0),
        "1/exp_avg": torch.arange(4.0, 25), "1/step": torch.tensor(3.0),
    },
    checkpoint.REPLICA: {"replica": torch.arange(25.0)},
    checkpoint.NORMS: {"1/2": torch.tensor([0.5, 0.25], dtype=torch.float64)},
    checkpoint.worker_file(1): {
        "feedback/0/residual": torch.arange(4.0), "feedback/0/rate": torch.tensor([0.5], dtype=torch.float64),
        "feedback/0/codebook": torch.arange(5, dtype=torch.uint8), "feedback/1/sent": torch.ones(16),
        "data/place": torch.tensor([3, 2]), "buffer/mean": torch.ones(2),
    },
}  # fmt: skip


def old(folder: Path, plan: Plan | None, content: dict[str, dict[str, torch.Tensor]]) -> Checkpoint:
    """Return a checkpoint of layout 1, with the given plan recorded, if any."""
    staged = StagedCheckpoint(folder, 3)
    for file, tensors in content.items():
        staged.add_tensors(file, tensors)
    path = staged.publish({"workers": 2, "layout": 1})
    return Checkpoint.open(path, plan)


def test_layout_1_is_read_by_the_plan_that_it_was_written_by(tmp_path: Path) -> None:
    found = old(tmp_path, plan_of(4, 20, groups=2), OLD)
    optimizer = state_names.state_of(found, checkpoint.OPTIMIZER)
    starts = {"a": 0, "b/c": 7, "d": 8, "e": 20}
    assert {name: value.tolist() for name, value in optimizer.items() if name.startswith("exp_avg/")} == {
        f"exp_avg/{name}": [float(place) for place in range(start, start + SIZES[name])] for name, start in starts.items()
    }
    steps = {name: value.tolist() for name, value in optimizer.items() if name.startswith("step/")}
    assert steps == {"step/a": [2.0] * 4 + [3.0] * 3, "step/b/c": [3.0], "step/d": [3.0], "step/e": [3.0]}
    replica = state_names.state_of(found, checkpoint.REPLICA)
    assert {name: value[0].item() for name, value in replica.items()} == {f"replica/{name}": at for name, at in starts.items()}
    assert list(state_names.state_of(found, checkpoint.NORMS)) == ["2/a:4..e:5"]
    worker = {name: value.tolist() for name, value in state_names.state_of(found, checkpoint.worker_file(1)).items()}
    assert worker == {
        "feedback/residual/a": [0, 1, 2, 3, 0, 0, 0],
        "feedback/rate/a": [0.5] * 4 + [0.0] * 3,
        "feedback/codebook/a:0..a:4": [0, 1, 2, 3, 4],
        "data/place": [3, 2],
        "buffer/mean": [1, 1],
    }


@pytest.mark.parametrize(
    ("file", "tensors"),
    [
        (checkpoint.OPTIMIZER, {"2/momentum_buffer": torch.zeros(4)}),
        (checkpoint.OPTIMIZER, {"0/momentum_buffer": torch.zeros(5)}),
        (checkpoint.OPTIMIZER, {"momentum_buffer/a": torch.zeros(7)}),
        (checkpoint.NORMS, {"x/1": torch.ones(3)}),
        (checkpoint.worker_file(1), {"feedback/-1/residual": torch.zeros(4)}),
        (checkpoint.worker_file(1), {"feedback/0/rate": torch.zeros(4)}),
    ],
)
def test_layout_1_of_another_plan_is_refused(tmp_path: Path, file: str, tensors: dict[str, torch.Tensor]) -> None:
    found = old(tmp_path, plan_of(4, 20, groups=2), {file: tensors})
    with pytest.raises(CheckpointError, match="does not fit the run's plan"):
        state_names.state_of(found, file)


def test_layout_1_without_a_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the plan that wrote it is unknown"):
        state_names.state_of(old(tmp_path, None, OLD), checkpoint.OPTIMIZER)


def test_what_has_no_place_in_another_plan_is_counted(tmp_path: Path) -> None:
    plan = plan_of(4, 20, groups=2)
    found = old(tmp_path, plan, OLD)
    assert state_names.homeless(found, plan) == (0, 0)
    assert state_names.homeless(found, plan_of(4)) == (0, 1)
    assert state_names.homeless(found, plan_of(7, groups=2)) == (1, 1)
    assert state_names.fits(found, plan)
    assert not state_names.fits(found, plan_of(4))
