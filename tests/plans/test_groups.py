"""Plans: every coordinate in exactly one segment, small tensors uncoded, cuts only where allowed."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psnode.codecs import get_codec
from psnode.config.schemes import SCHEMES
from psnode.errors import ConfigurationError
from psnode.plans.groups import IDENTITY, Plan, Tensor
from psnode.plans.rule import MAX_SEGMENT, PARTITION, GroupBy, make_plan

shapes = st.lists(st.integers(0, 70), min_size=0, max_size=4).map(tuple)


def tensors_of(all_shapes: list[tuple[int, ...]]) -> list[Tensor]:
    return [Tensor(f"layer{i // 2}.{'weight' if i % 2 == 0 else 'bias'}", shape) for i, shape in enumerate(all_shapes)]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(shapes, min_size=1, max_size=12),
    st.sampled_from(["qsgd", "svd:rank=3", "identity", "fp16", "terngrad"]),
    st.sampled_from(["layer", "bytes", "model"]),
    st.sampled_from([1 << 14, 1 << 17, 4 << 20]),
)
def test_segments_cover_every_coordinate_once_and_in_order(
    all_shapes: list[tuple[int, ...]], codec: str, group_by: str, group_bytes: int
) -> None:
    tensors = tensors_of(all_shapes)
    plan = make_plan(tensors, codec, group_by=group_by, group_bytes=group_bytes)
    position = 0
    for index, segment in enumerate(plan.segments):
        assert (segment.index, segment.start) == (index, position)
        position = segment.stop
    assert position == plan.size == sum(tensor.size for tensor in tensors)
    assert sorted(t.name for t in plan.tensors) == sorted(t.name for t in tensors)
    assert [group.index for group in plan.groups] == list(range(len(plan.groups)))
    for name, where in plan.slices().items():
        tensor = next(t for t in tensors if t.name == name)
        for segment in plan.segments:
            overlaps = segment.start < where.stop and where.start < segment.stop
            if overlaps and segment.codec != IDENTITY:
                assert len(tensor.shape) > 1 and 4 * tensor.size >= 4096
                if codec.startswith("svd"):
                    assert (segment.start, segment.shape) == (where.start, tensor.shape)


def test_a_small_model_is_one_group_and_a_large_ones_groups_shrink_towards_the_end() -> None:
    small = [Tensor(f"layer{i}.weight", (512, 256)) for i in range(8)]  # 512 KiB each, 4 MiB in total
    assert [4 * group.size >> 10 for group in make_plan(small, "qsgd").groups] == [4096]
    assert [4 * group.size >> 10 for group in make_plan(small, "qsgd", group_bytes=1 << 20).groups] == [1024] * 4
    # 32 MiB: 16, then 2/3 of 16, of 5 and of 1.5, and the rest
    large = [Tensor(f"layer{i}.weight", (512, 256)) for i in range(64)]
    assert [4 * group.size >> 10 for group in make_plan(large, "qsgd").groups] == [16384, 11264, 3584, 1024, 512]
    tail = [*large, Tensor("last.weight", (8, 256)), Tensor("last.bias", (256,))]  # 9 KiB: too small for their own group
    assert [4 * group.size >> 10 for group in make_plan(tail, "qsgd").groups] == [16384, 11264, 3584, 1545]


@given(st.lists(shapes, min_size=1, max_size=12), st.sampled_from(["qsgd", "svd:rank=3"]))
@settings(max_examples=50, deadline=None)
def test_a_plan_survives_json(all_shapes: list[tuple[int, ...]], codec: str) -> None:
    plan = make_plan(tensors_of(all_shapes), codec)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_vectors_small_tensors_and_what_would_not_shrink_travel_as_identity() -> None:
    tensors = [Tensor("vector", (100_000,)), Tensor("small", (31, 32)), Tensor("square", (40, 40)), Tensor("large", (400, 400))]
    plan = make_plan(tensors, "svd:rank=25", group_by="layer")
    codec = {segment.size: segment.codec for segment in plan.segments}
    assert codec[100_000 + 31 * 32 + 40 * 40] == IDENTITY  # 25 (40 + 40) > 40 * 40
    assert codec[400 * 400] == "svd:rank=25"


def test_fusion_makes_one_run_of_all_that_is_coded_alike_within_a_group() -> None:
    plan = make_plan(tensors_of([(64, 64), (64,)] * 4), "qsgd", group_by="model")
    assert [(s.codec, s.shape) for s in plan.segments] == [("qsgd", (4 * 64 * 64,)), (IDENTITY, (4 * 64,))]


@pytest.mark.parametrize("group_by", ["model", "layer"])
def test_small_tensors_join_the_others_of_their_group_if_asked_for(group_by: GroupBy) -> None:
    tensors = [Tensor("a.weight", (64, 64)), Tensor("a.bias", (64,)), Tensor("b.weight", (40, 30)), Tensor("b.bias", (30,))]
    plan = make_plan(tensors, "polar:rate=1", group_by=group_by, code_small=True)
    sizes = {"model": [64 * 64 + 64 + 40 * 30 + 30], "layer": [64 * 64 + 64, 40 * 30 + 30]}[group_by]
    assert [(s.codec, s.shape) for s in plan.segments] == [("polar:rate=1", (size,)) for size in sizes]


def test_a_group_that_coding_would_not_make_smaller_travels_as_it_is_though_small_tensors_are_coded() -> None:
    tensors = [
        Tensor("norm.weight", (8,)),
        Tensor("norm.bias", (8,)),
        Tensor("next.weight", (64, 64)),
        Tensor("next.bias", (64,)),
    ]
    plan = make_plan(tensors, "polar:rate=1", group_by="layer", code_small=True)
    assert get_codec("polar:rate=1").max_nbytes((16,)) > 4 * 16
    assert [(s.codec, s.size) for s in plan.segments] == [(IDENTITY, 16), ("polar:rate=1", 64 * 64 + 64)]


def test_small_tensors_with_scales_of_their_own_are_coded_one_by_one_if_asked_for() -> None:
    [group] = make_plan(tensors_of([(64, 64), (64,), (32, 50), (1,)]), "scaledsign", group_by="model", code_small=True).groups
    assert [(s.codec, s.shape) for s in group.segments] == [
        ("scaledsign", (64 * 64,)), ("scaledsign", (64,)), ("scaledsign", (32 * 50,)), (IDENTITY, (1,)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "codec",
    ["terngrad", "terngrad+ans", "scaledsign", "onebit", "minmax:bits=4", "tbq", "lss:bits=2", "contractive(minmax)"],
)
def test_tensors_that_would_share_a_scale_are_segments_of_their_own_in_the_same_frame(codec: str) -> None:
    tensors = tensors_of([(64, 64), (64,), (32, 50), (9,)])
    [group] = make_plan(tensors, codec, group_by="model").groups
    assert [(s.codec, s.shape) for s in group.segments] == [(codec, (64 * 64,)), (codec, (32 * 50,)), (IDENTITY, (64 + 9,))]


@pytest.mark.parametrize("codec", ["scaledsign:bucket=512", "tbq:tau=0.01", "topk:ratio=0.1+scaledsign", "qsgd"])
def test_tensors_whose_scales_are_their_own_or_fixed_are_fused(codec: str) -> None:
    [group] = make_plan(tensors_of([(64, 64), (64,), (32, 50), (9,)]), codec, group_by="model").groups
    assert [(s.codec, s.size) for s in group.segments] == [(codec, 64 * 64 + 32 * 50), (IDENTITY, 64 + 9)]


def test_one_scale_for_tensors_of_unlike_magnitude_would_lose_the_smaller_one() -> None:
    """Check that the smaller of two tensors keeps its own scale: it loses 1 - 2 / pi of its energy. With the other's scale,
    50 times too large, it would lose 2500 times its energy.
    """
    rng = np.random.default_rng(5)
    large, small = 100 * rng.standard_normal((64, 64)), rng.standard_normal((64, 64))
    x = np.concatenate([large.ravel(), small.ravel()]).astype(np.float32)
    plan = make_plan(tensors_of([(64, 64), (64,), (64, 64)]), "scaledsign", group_by="model")
    decoded = np.zeros_like(x)
    for segment in plan.segments[:2]:
        codec, where = get_codec(segment.codec), slice(segment.start, segment.stop)
        decoded[where] = codec.decode(codec.encode(x[where], np.random.default_rng(6)))
    lost = ((x - decoded) ** 2)[small.size :].sum() / (small**2).sum()
    assert lost == pytest.approx(1 - 2 / math.pi, abs=0.06)  # 4096 values: six standard errors


def test_layers_are_groups_of_their_own() -> None:
    plan = make_plan(tensors_of([(64, 64), (64,)] * 3), "qsgd", group_by="layer")
    assert [len(group.segments) for group in plan.groups] == [2, 2, 2]


def test_large_flat_tensors_are_cut_at_multiples_of_4096_and_shaped_ones_are_not() -> None:
    big = [Tensor("big.weight", (1000, 1237)), Tensor("big.bias", (1000,))]
    flat = make_plan(big, "qsgd", group_bytes=1 << 20)
    assert sum(segment.codec == "qsgd" for segment in flat.segments) == 5
    assert all(segment.start % PARTITION == 0 for segment in flat.segments if segment.codec == "qsgd")
    assert max(4 * group.size for group in flat.groups) < 1.5 * (1 << 20)
    shaped = make_plan(big, "svd", group_bytes=1 << 20)
    assert [s.shape for s in shaped.segments] == [(1000, 1237), (1000,)]


def test_a_large_embedding_is_coded_by_its_shape_in_tall_blocks_of_rows_that_are_groups_of_their_own() -> None:
    tensors = [Tensor("embedding.weight", (50257, 768)), Tensor("wide.weight", (3072, 768))]
    plan = make_plan(tensors, "svd", group_bytes=16 << 20)
    shapes = [segment.shape for segment in plan.segments]
    assert shapes == [(5585, 768)] * 8 + [(50257 - 8 * 5585, 768), (3072, 768)]
    assert max(len(group.segments) for group in plan.groups) == 1
    # rank (rows + columns) values per block: at most a quarter more than uncut, if a block has four times more rows than columns
    assert sum(sum(shape) for shape in shapes[:-1]) <= 1.25 * (50257 + 768)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize("shape", [(768, 50257), (4096, 4096), (8191, 1024), (0, 5), (5, 0)])
def test_what_is_not_tall_is_not_cut(shape: tuple[int, ...]) -> None:
    plan = make_plan([Tensor("a.weight", shape)], "svd", group_bytes=1 << 20, min_compress_bytes=0)
    assert [segment.shape for segment in plan.segments][:1] in ([shape], [(0,)])


def test_an_embedding_beyond_the_largest_payload_is_coded_in_blocks_however_groups_are_made() -> None:
    for group_by in ("layer", "bytes", "model"):
        plan = make_plan([Tensor("embedding.weight", (131072, 4096))], "svd", group_by=group_by)  # type: ignore[arg-type]
        assert max(segment.size for segment in plan.segments) <= MAX_SEGMENT
        assert sum(segment.shape[0] for segment in plan.segments) == 131072
    with pytest.raises(ConfigurationError, match="cannot cut"):
        make_plan([Tensor("a.weight", (32768, 16384))], "svd")


@pytest.mark.parametrize("group_bytes", [1 << 12, 1 << 16, 1 << 20, 1 << 24])
def test_groups_by_bytes_stay_below_one_and_a_half_times_the_limit(group_bytes: int) -> None:
    plan = make_plan(tensors_of([(256, 256), (256,), (64, 64), (9,)] * 3), "qsgd", group_bytes=group_bytes)
    for group in plan.groups:
        assert 4 * group.size < 1.5 * group_bytes + 4 * PARTITION or len(group.segments) == 1


def test_a_plan_that_does_not_cover_its_tensors_is_refused() -> None:
    data = make_plan([Tensor("a.weight", (64, 64))], "qsgd").to_dict()
    data["groups"][0][0][2] = [math.prod((64, 64)) - 1]
    with pytest.raises(ConfigurationError, match="cover 4095 of 4096"):
        Plan.from_dict(data)


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no trainable parameters"):
        make_plan([], "qsgd")


@pytest.mark.parametrize("codec", ["threshold:tau=0.01", "blosc", "threshold:tau=0.01+fp16"])
def test_a_codec_whose_payloads_depend_on_the_values_is_used_although_they_might_be_large(codec: str) -> None:
    plan = make_plan([Tensor("large", (400, 400)), Tensor("bias", (400,))], codec)
    assert [segment.codec for segment in plan.segments] == [codec, IDENTITY]


@pytest.mark.parametrize("group_by", ["layer", "bytes", "model"])
@pytest.mark.parametrize("codec", sorted({scheme.codec for scheme in SCHEMES.values()}))
def test_no_payload_holds_more_than_its_format_can_count(codec: str, group_by: GroupBy) -> None:
    """Check that no uplink segment and no downlink group has more than 2^28 values, or that the plan is refused with one line."""
    tensors = [Tensor("a.weight", (1 << 15, 1 << 15)), Tensor("a.bias", (1 << 15,)), Tensor("b.weight", (1 << 14, 1 << 14))]
    if get_codec(codec).shaped:
        with pytest.raises(ConfigurationError, match=r"a\.weight"):
            make_plan(tensors, codec, group_by=group_by)
        return
    plan = make_plan(tensors, codec, group_by=group_by, group_bytes=1 << 33)
    assert plan.size == sum(tensor.size for tensor in tensors)
    assert max(segment.size for segment in plan.segments) <= 1 << 28
    assert max(group.size for group in plan.groups) <= 1 << 28
