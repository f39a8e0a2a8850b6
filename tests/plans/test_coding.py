"""The coding of segments, tested with plain values: both directions, all phases, limits; without a model or a link."""

from __future__ import annotations

import math

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from psnode.config.effects import CLIPPED
from psnode.config.scheme import Scheme
from psnode.feedback import get_feedback
from psnode.plans.coding import Coding, SegmentCoding, loses
from psnode.plans.groups import Plan, Segment

TOP, QUANTISED, SMALL = (32, 128), (64, 64), (10,)
PLAN = Plan.from_dict(
    {
        "tensors": [["top", list(TOP)], ["quantised", list(QUANTISED)], ["small", list(SMALL)]],
        "groups": [
            [["topk:ratio=0.01", 0, [4096]]],
            [["qsgd:levels=1,bucket=512", 4096, list(QUANTISED)], ["identity", 8192, list(SMALL)]],
        ],
    }
)


def scheme(**fields: object) -> Scheme:
    return Scheme("mine", "topk:ratio=0.01", "", "", **fields)  # type: ignore[arg-type]


MIXED = scheme(feedback="ef", downlink="topk:ratio=0.005", ratio_warmup=(0.25, 0.0625), ratio_epochs=0.5)


def test_segments_of_one_plan_have_codecs_of_their_own_in_both_directions() -> None:
    """Check the codecs of three segments. Under error feedback an unbiased quantiser is used in its contractive form;
    tensors sent up uncoded come down uncoded.
    """
    coding = Coding(PLAN, MIXED)
    assert coding.up == [
        get_codec("topk:ratio=0.01"), get_codec("contractive(qsgd:levels=1,bucket=512)"), get_codec("identity"),
    ]  # fmt: skip
    assert coding.down == [get_codec("topk:ratio=0.005"), get_codec("topk:ratio=0.005"), get_codec("identity")]


def test_a_warm_up_of_ratios_is_that_of_the_segments_that_have_a_ratio() -> None:
    top, quantised, small = Coding(PLAN, MIXED).segments
    assert top.ups == tuple(get_codec(f"topk:ratio={ratio}") for ratio in (0.25, 0.0625, 0.01))
    assert [top.in_phase(phase) for phase in (0, 1, 2, 9)] == [*top.ups, top.up]
    assert set(quantised.ups) == {quantised.up} and small.ups == (get_codec("identity"),)


def test_phases_are_counted_in_parts_of_an_epoch() -> None:
    """Check phases of half an epoch each: with ten steps per epoch, a phase lasts five steps."""
    coding = Coding(PLAN, MIXED)
    assert [coding.phase(steps, 10) for steps in (0, 4, 5, 9, 10)] == [0, 0, 1, 1, 2]


def test_no_payload_of_any_phase_is_larger_than_its_segments_limit() -> None:
    coding, rng = Coding(PLAN, MIXED), np.random.default_rng(3)
    for each, limit in zip(coding.segments, coding.limits, strict=True):
        sizes = [codec.encode(rng.standard_normal(each.segment.shape).astype("f4"), Key.derive(1)).nbytes for codec in each.ups]
        assert max(sizes) <= limit
        assert limit == max(codec.max_nbytes(each.segment.shape) for codec in each.ups)
    assert coding.limits[0] >= 4096 // 4 * 4  # in the first phase: a quarter of the values, four bytes each


def test_a_dense_downlink_has_no_codecs() -> None:
    coding = Coding(PLAN, scheme())
    assert coding.down is None and {each.down for each in coding.segments} == {None}


def test_changes_that_a_codec_would_not_make_smaller_go_as_they_are() -> None:
    """Check that a short vector is sent as float32, which is smaller than its largest values with their indices and a header."""
    whole = Plan.from_dict({"tensors": [["a", [3]], ["b", [4096]]], "groups": [[["identity", 0, [3]], ["identity", 3, [4096]]]]})
    assert Coding(whole, scheme(downlink="topk:ratio=0.01")).down == [get_codec("identity"), get_codec("topk:ratio=0.01")]


@pytest.mark.parametrize(
    ("aggregator", "expected"),
    [("mean", ["ef:decay=1,rescale=false"] * 2 + ["none"]), (CLIPPED, ["ef:decay=1,rescale=false"] * 3)],
)
def test_a_segment_that_travels_whole_has_a_memory_only_where_a_part_of_it_may_be_used(
    aggregator: str, expected: list[str]
) -> None:
    coding = Coding(PLAN, scheme(feedback="ef", aggregator=aggregator))
    assert [repr(each.feedback) for each in coding.segments] == expected


def test_only_sketches_that_cost_less_together_are_merged() -> None:
    """Check that sketches are merged, since they add up as their vectors do. Float32 adds up too, but merging it saves no
    work.
    """
    coded = [SegmentCoding.of(Segment(0, spec, 0, (4096,)), get_feedback("none")) for spec in ("countsketch", "topk", "identity")]
    assert [each.merges for each in coded] == [True, False, False]


def test_a_momentum_of_the_senders_gathers_the_masters_weight_decay_if_the_scheme_says_so() -> None:
    for gathers, expected in ((True, (0.5, 1.0, True)), (False, None)):
        coding = Coding(PLAN, scheme(feedback="dgc:momentum=0.5,nesterov=true", gathers_decay=gathers))
        assert coding.gathering == expected
    assert Coding(PLAN, scheme(feedback="ef")).gathering is None


def test_a_coding_of_a_plan_has_its_segments_in_their_order() -> None:
    assert [each.segment for each in Coding(PLAN, MIXED).segments] == list(PLAN.segments)
    assert sum(math.prod(each.segment.shape) for each in Coding(PLAN, MIXED).segments) == PLAN.size


@pytest.mark.parametrize(
    ("spec", "lossy"),
    [
        ("identity", False),
        ("blosc", False),
        ("fp16", False),
        ("bf16", False),
        ("dense", False),
        ("qsgd:levels=127", True),
        ("topk+fp16", True),
    ],
)
def test_codecs_that_only_round_to_half_precision_count_as_having_no_loss(spec: str, lossy: bool) -> None:
    assert loses(spec) is lossy
