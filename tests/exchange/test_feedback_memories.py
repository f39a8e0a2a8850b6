"""A worker's memories written under one plan, read under another, and written again: all tensors keep their values."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.codecs import Payload, get_codec
from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.config.scheme import Scheme
from psnode.errors import CheckpointError
from psnode.exchange.sender import GradientSender
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan, Segment, Tensor
from psnode.plans.rule import make_plan
from psnode.protocol import wire
from psnode.protocol.channel import FrameChannel
from psnode.protocol.round import Round
from psnode.protocol.wire import Frame, Kind
from psnode.records import tensorfile
from psnode.transport.loopback import loopback_group
from tests.exchange.given import Given
from tests.records.plain_reader import read

TENSORS = [
    Tensor("head.weight", (10, 30)), Tensor("head.bias", (10,)), Tensor("body.weight", (90, 100)), Tensor("body.bias", (90,)),
    Tensor("stem.weight", (60, 64)), Tensor("scale", ()),
]  # fmt: skip
SIZE = sum(tensor.size for tensor in TENSORS)
PLANS: dict[str, dict[str, Any]] = {
    "whole": {"group_by": "model", "min_compress_bytes": 0},
    "layers": {"group_by": "layer", "min_compress_bytes": 0},
    "cut": {"group_by": "bytes", "group_bytes": 16384, "min_compress_bytes": 0},
    "small ones as they are": {"group_by": "bytes", "group_bytes": 16384, "min_compress_bytes": 4096},
    "all as they are": {"group_by": "model", "min_compress_bytes": 1 << 20},
}
RULES: dict[str, dict[str, Any]] = {
    "ef": {"scheme": "topk", "feedback": "ef"},
    "ef in weights": {"scheme": "topk", "feedback": "ef:rescale=true"},
    "momentum factor masking": {"scheme": "dgc:ratio=0.01", "sparsity_warmup_epochs": 0.0},
    "average": {"scheme": "signum"},
    "accumulated error": {"scheme": "ecq"},
    "clipped": {"scheme": "topk", "feedback": "ef", "aggregator": "mean:clip=median"},
}


class ByName(Given):
    """Gradients given by tensor name, laid out in the order of any plan."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(np.zeros(plan.size, np.float32))
        self.plan = plan

    def draw(self, seed: int, scale: float = 1.0) -> None:
        for index, tensor in enumerate(TENSORS):
            values = np.random.default_rng([seed, index]).standard_normal(tensor.size)
            self.vector[self.plan.slices()[tensor.name]] = scale * values


class Sender:
    """A sender for a plan, with its own gradients; a context manager."""

    def __init__(self, scheme: Scheme, **plan: Any) -> None:
        self.plan = make_plan(TENSORS, scheme.codec, **plan)
        self.given = ByName(self.plan)
        master, own = loopback_group(2)
        self.master = FrameChannel(master)
        self.sender = GradientSender(
            Coding(self.plan, scheme), FrameChannel(own), [[0]] * len(self.plan.groups), self.given,  # type: ignore[arg-type]
            seed=1, lr=lambda step: 0.1 * 0.8**step, steps_per_epoch=9,
        )  # fmt: skip

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.sender.close()

    def step(self, number: int, scale: float = 1.0) -> None:
        self.given.draw(number, scale)
        self.sender.begin(Round.after(number - 1), measure=False)
        for group in self.plan.groups:
            self.sender.push(group.index)
        self.sender.drain()

    def received(self) -> np.ndarray:
        """Return the decoded values of the next frame, which holds one group."""
        frame = self.master.next(30)
        assert isinstance(frame, Frame) and frame.kind is Kind.GRADIENT
        segments = self.plan.groups[frame.group].segments
        payloads = [Payload.from_bytes(bytes(data)) for data in wire.split_group(frame.body, len(segments))]
        return np.concatenate([get_codec(s.codec).decode(p).reshape(-1) for s, p in zip(segments, payloads, strict=True)])

    def written(self, path: Path) -> dict[str, np.ndarray]:
        tensorfile.write_tensors(path, self.sender.state())
        return read(path)

    def load(self, path: Path) -> None:
        self.sender.load_state(tensorfile.parse(path.read_bytes(), "the file"))


def nonzero(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the memories that are not zero, and their rates; the rate of a zero memory has no meaning."""
    kept = {name: value for name, value in arrays.items() if value.any() and not name.startswith("feedback/rate/")}
    rates = {name.replace("/residual/", "/rate/") for name in kept if "/residual/" in name} & arrays.keys()
    return kept | {name: arrays[name] for name in rates}


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("first", PLANS)
def test_what_one_plan_wrote_and_another_read_and_wrote_is_the_same_tensor_by_tensor(
    tmp_path: Path, rule: str, first: str
) -> None:
    scheme = resolve(Config(**RULES[rule]))
    with Sender(scheme, **PLANS[first]) as one:
        for number in (1, 2, 3):
            one.step(number)
        before = one.written(tmp_path / "first")
    sizes = {tensor.name: tensor.size for tensor in TENSORS}
    for name, value in before.items():
        _, memory, tensor = name.split("/", 2)
        assert value.shape == ((1,) if memory == "rate" else (sizes[tensor],))
        assert value.dtype == (np.float64 if memory == "rate" else np.float32)
    for second in PLANS:
        with Sender(scheme, **PLANS[second]) as other, Sender(scheme, **PLANS[first]) as again:
            other.load(tmp_path / "first")
            assert_equal(nonzero(other.written(tmp_path / "second")), nonzero(before))
            again.load(tmp_path / "second")
            assert_equal(again.written(tmp_path / "third"), before)


@pytest.mark.parametrize("rule", RULES)
def test_by_the_same_plan_the_next_steps_are_the_same(tmp_path: Path, rule: str) -> None:
    scheme = resolve(Config(**RULES[rule]))
    with Sender(scheme, **PLANS["cut"]) as one, Sender(scheme, **PLANS["cut"]) as other:
        one.step(1)
        one.step(2)
        one.written(tmp_path / "state")
        other.load(tmp_path / "state")
        for number in (3, 4):
            one.step(number)
            other.step(number)
        assert_equal(other.written(tmp_path / "other"), one.written(tmp_path / "one"))


@pytest.mark.parametrize(("rule", "memory"), [("ef", "residual"), ("momentum factor masking", "velocity")])
def test_what_a_tensor_is_owed_leaves_at_once_where_it_is_compressed_no_more(tmp_path: Path, rule: str, memory: str) -> None:
    """Check that a gradient of zeros sends all of a tensor's memory once the tensor is no longer compressed, plus DGC's
    momentum times .9.
    """
    scheme = resolve(Config(**RULES[rule]))
    with Sender(scheme, **PLANS["whole"]) as one, Sender(scheme, **PLANS["all as they are"]) as other:
        one.step(1)
        before = one.written(tmp_path / "state")
        assert before[f"feedback/{memory}/body.weight"].any()
        other.load(tmp_path / "state")
        other.step(2, scale=0)
        nothing = np.zeros(SIZE, np.float32)
        owed = [
            before.get(f"feedback/{memory}/{tensor.name}", nothing[: tensor.size])
            + np.float32(0.9) * before.get(f"feedback/momentum/{tensor.name}", nothing[: tensor.size])
            for tensor in other.plan.tensors
        ]
        np.testing.assert_allclose(other.received(), np.concatenate(owed), rtol=1e-6, atol=1e-7)
        assert not any(name.startswith(f"feedback/{memory}/") for name in nonzero(other.written(tmp_path / "after")))


def test_memories_in_units_of_unlike_learning_rates_stay_what_they_are_in_weights(tmp_path: Path) -> None:
    """Check that rate times residual stays the same for residuals that were written at different learning rates and are coded
    in one segment. A tensor that was left out for some steps has another rate.
    """
    scheme = resolve(Config(**RULES["ef in weights"]))
    rng, tensors = np.random.default_rng(3), {}
    rates = {tensor.name: rate for tensor, rate in zip(TENSORS, (0.5, 0.25, 0.25, 0.125, 0.5, 0.5), strict=True)}
    for name, size in ((tensor.name, tensor.size) for tensor in TENSORS):
        tensors[f"feedback/residual/{name}"] = torch.from_numpy(rng.standard_normal(size).astype(np.float32))
        tensors[f"feedback/rate/{name}"] = torch.tensor([rates[name]], dtype=torch.float64)
    tensorfile.write_tensors(tmp_path / "first", tensors)
    with Sender(scheme, **PLANS["whole"]) as sender:
        sender.load(tmp_path / "first")
        found = sender.written(tmp_path / "second")
    for tensor in TENSORS:
        owed = found[f"feedback/rate/{tensor.name}"] * found[f"feedback/residual/{tensor.name}"]
        np.testing.assert_allclose(owed, rates[tensor.name] * tensors[f"feedback/residual/{tensor.name}"].numpy(), rtol=1e-6)


def test_a_codebook_goes_on_where_its_segment_is_there_and_is_left_out_elsewhere(tmp_path: Path) -> None:
    scheme = resolve(Config(scheme="lss:refit=4", feedback="ef"))
    with Sender(scheme, **PLANS["cut"]) as one:
        one.step(1)
        before = one.written(tmp_path / "first")
    names = {name for name in before if name.startswith("feedback/codebook/")}
    with Sender(scheme, **{**PLANS["cut"], "min_compress_bytes": 4096}) as other:
        other.load(tmp_path / "first")
        after = other.written(tmp_path / "second")
    kept = {name for name in after if name.startswith("feedback/codebook/") and after[name].any()}
    assert kept and kept < names
    assert all(np.array_equal(after[name], before[name]) for name in kept)
    with Sender(scheme, **PLANS["cut"]) as again:
        again.load(tmp_path / "first")
        assert_equal(again.written(tmp_path / "third"), before)


@pytest.mark.parametrize(
    "changed",
    [
        {"feedback/residual/head.weight": torch.zeros(299)},
        {"feedback/residual/head.weight": torch.zeros(10, 30)},
        {"feedback/residual/tail.weight": torch.zeros(5)},
        {"feedback/velocity/head.weight": torch.zeros(300)},
        {"feedback/rate/head.weight": torch.zeros(3, dtype=torch.float64)},
        {"feedback/rate/tail.weight": torch.zeros(1, dtype=torch.float64)},
        {"feedback/codebook/head.weight:0..head.bias:10": torch.zeros(5, dtype=torch.uint8)},
    ],
)
def test_state_of_another_run_is_refused_in_one_line(tmp_path: Path, changed: dict[str, torch.Tensor]) -> None:
    scheme = resolve(Config(**RULES["ef in weights"]))
    with Sender(scheme, **PLANS["cut"]) as sender:
        state = {**sender.sender.state(), **changed}
        with pytest.raises(CheckpointError, match="does not fit this run") as told:
            sender.sender.load_state(state)
        assert "\n" not in str(told.value)


def test_a_tensor_that_is_cut_over_segments_of_which_one_is_whole_has_one_entry() -> None:
    """Check that a tensor has one entry among the memories if it is cut into two segments, one of which is sent uncoded."""
    tensors = (Tensor("w", (100, 100)),)
    plan = Plan.from_dict(
        {"tensors": [["w", [100, 100]]], "groups": [[["topk:ratio=0.01", 0, [4096]]], [["identity", 4096, [5904]]]]}
    )
    assert plan.tensors == tensors and dataclasses.asdict(plan.segments[1]) == dataclasses.asdict(
        Segment(1, "identity", 4096, (5904,))
    )
    link = FrameChannel(loopback_group(2)[1])
    scheme = resolve(Config(scheme="topk", feedback="ef"))
    targets = [[0]] * len(plan.groups)
    sender = GradientSender(Coding(plan, scheme), link, targets, None, seed=1, lr=lambda step: 0.1, steps_per_epoch=9)  # type: ignore[arg-type]
    try:
        values = torch.from_numpy(np.random.default_rng(1).standard_normal(10_000).astype(np.float32))
        sender.load_state({"feedback/residual/w": values})
        assert torch.equal(sender.state()["feedback/residual/w"], values)
    finally:
        sender.close()
