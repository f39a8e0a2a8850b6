"""A grouping as a plan: the rules for small tensors and cuts, and a step under codecs that differ by group."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from psnode.codecs.rng import Key
from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError
from psnode.exchange.routes.route import Route
from psnode.exchange.shard.consistency import Synchronous
from psnode.exchange.shard.shard import Shard
from psnode.exchange.shard.shard_events import GroupClosed
from psnode.exchange.update.served_model import ServedModel
from psnode.jobs.planning.profile import SchemeCosts, TensorTimes
from psnode.jobs.planning.search.codec_curves import CodecCurves, CostLine
from psnode.jobs.planning.search.grouping import (
    CodecCandidate,
    GroupChoice,
    SmallTensorRules,
    grouped_plan,
    planned_costs,
)
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan, Tensor
from psnode.plans.rule import PARTITION, make_plan
from psnode.protocol import wire
from psnode.protocol.channel import FrameChannel
from psnode.protocol.round import Round
from psnode.protocol.wire import Kind
from psnode.records.timeline import Tracer
from psnode.transport.loopback import loopback_group

QSGD = "qsgd:levels=15,bucket=512"
CODECS = {"qsgd": QSGD, "dense": "identity", "bf16": "bf16", "atomo": "svd:rank=3,method=deflated"}
TENSORS = [
    Tensor("c.weight", (100, 64)), Tensor("c.bias", (100,)), Tensor("b.weight", (64, 64)), Tensor("b.tiny", (3, 3)),
    Tensor("a.weight", (50, 64)),
]  # fmt: skip


def described(plan: Plan) -> list[list[tuple[str, int]]]:
    return [[(segment.codec, segment.size) for segment in group.segments] for group in plan.groups]


def test_groups_have_their_own_codecs_and_small_tensors_travel_as_they_are() -> None:
    chosen = {("c.weight", "c.bias"): "qsgd", ("b.weight", "b.tiny"): "bf16", ("a.weight",): "dense"}
    groups = [GroupChoice(names, flags) for names, flags in chosen.items()]
    plan = grouped_plan(TENSORS, groups, CODECS)
    assert described(plan) == [[(QSGD, 6400), ("identity", 100)], [("bf16", 4096), ("identity", 9)], [("identity", 3200)]]
    assert Plan.from_dict(plan.to_dict()) == plan
    coding = Coding(plan, resolve(Config(scheme="qsgd", lr=0.1)))
    assert [codec.lossless for codec in coding.up] == [False, True, False, True, True]
    assert [codec.lossless for codec in coding.down or ()] == [False, True, False, True, True]


def test_small_tensors_are_coded_if_the_rules_say_so() -> None:
    groups = [GroupChoice(tuple(tensor.name for tensor in TENSORS), "qsgd")]
    rules = SmallTensorRules.of(Config(small_tensors="coded"))
    assert described(grouped_plan(TENSORS, groups, CODECS, rules)) == [[(QSGD, 6400 + 100 + 4096 + 9 + 3200)]]
    rules = SmallTensorRules.of(Config(min_compress_bytes=4 * 4000))
    assert described(grouped_plan(TENSORS, groups, CODECS, rules)) == [[(QSGD, 6400 + 4096), ("identity", 100 + 9 + 3200)]]


@pytest.mark.parametrize("spec", [QSGD, "identity", "svd:rank=2"])
def test_a_single_group_is_the_plan_of_the_whole_model(spec: str) -> None:
    found = grouped_plan(TENSORS, [GroupChoice(tuple(tensor.name for tensor in TENSORS), "a")], {"a": spec})
    assert found == make_plan(TENSORS, spec, group_by="model")


def test_a_shaped_codec_keeps_tensors_whole_and_leaves_those_in_vain() -> None:
    tensors = [Tensor("wide", (64, 64)), Tensor("narrow", (3, 1024))]  # three terms of 3 + 1024 values are no fewer than 3 * 1024
    plan = grouped_plan(tensors, [GroupChoice(("wide", "narrow"), "atomo")], CODECS)
    assert [(segment.codec, segment.shape) for segment in plan.segments] == [(CODECS["atomo"], (64, 64)), ("identity", (3072,))]


def test_parts_are_groups_cut_at_multiples_of_the_partition() -> None:
    tensors = [Tensor("big", (1000, 100)), Tensor("next", (64, 64))]
    groups = [GroupChoice(("big",), "qsgd", parts=3), GroupChoice(("next",), "qsgd")]
    plan = grouped_plan(tensors, groups, CODECS)
    assert len(plan.groups) == 4
    assert [group.size for group in plan.groups][:3] == [9 * PARTITION, 9 * PARTITION, 100_000 - 18 * PARTITION]
    assert len(grouped_plan(tensors, groups, CODECS, whole_tensors=True).groups) == 2


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([GroupChoice(("c.weight",), "qsgd")], "every tensor"),
        ([GroupChoice(tuple(tensor.name for tensor in reversed(TENSORS)), "qsgd")], "order"),
        ([GroupChoice(tuple(tensor.name for tensor in TENSORS), "other")], "'other'"),
        ([GroupChoice(tuple(tensor.name for tensor in TENSORS), "qsgd"), GroupChoice((), "qsgd")], "no group"),
        ([GroupChoice(tuple(tensor.name for tensor in TENSORS), "qsgd", parts=0)], "no group"),
    ],
)
def test_groups_that_do_not_fit_the_model_are_refused(groups: list[GroupChoice], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        grouped_plan(TENSORS, groups, CODECS)


def test_costs_are_those_of_the_curves_at_the_sizes_of_the_plan() -> None:
    def curves(fixed: float, coded: float, plain: float) -> CodecCurves:
        line, extra = CostLine(fixed, coded, plain), CostLine(0.25, 0.0, 0.0)
        return CodecCurves(line, line, line, line, line, line, extra, line)

    candidates = [
        CodecCandidate("qsgd", QSGD, curves(10, 1, 4), 0.1),
        CodecCandidate("dense", "identity", curves(20, 9, 5), 0.0, False),
    ]
    times = [TensorTimes(tensor.shape, 0.1 * place, 0.5 - 0.1 * place, tensor.name) for place, tensor in enumerate(TENSORS)]
    groups = [GroupChoice(("c.weight", "c.bias", "b.weight"), "qsgd", parts=2), GroupChoice(("b.tiny", "a.weight"), "dense")]

    def costs(groups: list[GroupChoice], chosen: list[CodecCandidate], tensors: list[Tensor] = TENSORS) -> SchemeCosts:
        return planned_costs(grouped_plan(tensors, groups, CODECS), times, chosen)

    found = costs(groups, candidates)
    first, second = 10 + 2 * 4096, 10 + 6400 - 4096 + 4 * 100  # cut at a multiple of 4096 coordinates
    assert [group.up for group in found.groups] == [first, second, 20 + 5 * 3209]
    assert [group.encode for group in found.groups] == pytest.approx([first, second, 20 + 5 * 3209])
    assert [(group.ready, group.needed) for group in found.groups] == [(0.2, pytest.approx(0.3))] * 2 + [
        (0.4, pytest.approx(0.1))
    ]
    assert (found.extra, found.bookkeeping, found.lossy) == (0.75, pytest.approx((first + second + 20 + 5 * 3209) / 3), True)
    assert not costs([GroupChoice(tuple(each.name for each in times), "dense")], candidates).lossy
    for chosen, expected in ((candidates, 20 + 5 * 100), (candidates[:1], 10 + 4 * 100)):
        alone = [tensor for tensor in TENSORS if tensor.name == "c.bias"]
        assert [group.up for group in costs([GroupChoice(("c.bias",), "qsgd")], chosen, alone).groups] == [expected]


def test_a_plan_costs_as_much_as_the_same_groups() -> None:
    line = CostLine(10.0, 1.0, 4.0)
    candidate = CodecCandidate("qsgd", QSGD, CodecCurves(line, line, line, line, line, line, line, line), 0.1)
    times = [TensorTimes(tensor.shape, 0.1 * place, 0.5 - 0.1 * place, tensor.name) for place, tensor in enumerate(TENSORS)]
    groups = [
        GroupChoice(("c.weight", "c.bias"), "qsgd"),
        GroupChoice(("b.weight", "b.tiny"), "qsgd"),
        GroupChoice(("a.weight",), "qsgd"),
    ]
    plan = make_plan(TENSORS, QSGD, group_by="layer")
    assert [group.size for group in plan.groups] == [6500, 4105, 3200]
    assert planned_costs(plan, times, [candidate]) == planned_costs(grouped_plan(TENSORS, groups, CODECS), times, [candidate])


def network() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(48, 64), nn.Linear(64, 40))


def test_a_step_with_codecs_that_differ_by_group_moves_uncoded_tensors_as_torch_does() -> None:
    """Compare the weights of two workers under momentum .9 with torch's: uncoded tensors are equal, and coded tensors nearly
    equal.
    """
    model, reference = network(), network()
    tensors = [Tensor(name, tuple(value.shape)) for name, value in model.named_parameters()][::-1]
    names = [tensor.name for tensor in tensors]
    assert names == ["1.bias", "1.weight", "0.bias", "0.weight"]
    choices = [GroupChoice(("1.bias", "1.weight"), "qsgd"), GroupChoice(("0.bias",), "bf16"), GroupChoice(("0.weight",), "dense")]
    config = Config(scheme="qsgd", lr=0.1, momentum=0.9)
    plan = grouped_plan(tensors, choices, CODECS)
    coding = Coding(plan, resolve(config))
    ends = loopback_group(3)
    link = FrameChannel(ends[0])
    weights = torch.empty(plan.size)
    shard = Shard(
        coding, range(len(plan.groups)), config, ServedModel(model, plan, weights), link, Synchronous(2), lambda now: 0.1,
        [Route(0, (1, 2)) for _ in plan.groups], Tracer(0, enabled=False),
    )  # fmt: skip
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    named = dict(reference.named_parameters())
    rng = np.random.default_rng(7)
    try:
        shard.admit([1, 2], 0)
        for version in range(2):
            shard.open(Round.after(version))
            both = [rng.standard_normal(plan.size).astype(np.float32) for _ in (1, 2)]
            for rank, values in zip((1, 2), both, strict=True):
                for group in plan.groups:
                    making = wire.GroupFrame(len(group.segments), 8 * group.size + 1024)
                    for segment, codec in zip(plan.segments, coding.up, strict=True):
                        if segment in group.segments:
                            part = values[segment.start : segment.stop].reshape(segment.shape)
                            making.take(codec.encode(part, Key.derive(rank), out=making.room).nbytes)
                    sealed = making.seal(Kind.GRADIENT, sender=rank, job=0, group=group.index, step=version + 1, version=version)
                    assert shard.offer(wire.unpack(sealed, job=0, source=rank))
            events = [link.next(60.0) for _ in plan.groups]
            assert all(isinstance(event, GroupClosed) for event in events), events
            for name, where in plan.slices().items():
                mean = (both[0][where] + both[1][where]) / 2
                named[name].grad = torch.from_numpy(mean).view(named[name].shape)
            optimizer.step()
    finally:
        shard.__exit__(None, None, None)
    begun = dict(network().named_parameters())
    for name, value in model.named_parameters():
        if name == "1.weight":
            moved, expected = (value - begun[name]).detach(), (named[name] - begun[name]).detach()
            assert not torch.equal(moved, expected)
            # the paper's bound of |decoded - x|^2 over |x|^2, for s levels and n values of a bucket: min(n / s^2, sqrt(n) / s)
            variance = min(512 / 15**2, 512**0.5 / 15) / 2  # of the mean of two workers
            assert float((moved - expected).norm() / expected.norm()) < variance**0.5
        else:
            torch.testing.assert_close(value, named[name])
