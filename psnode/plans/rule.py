"""Construction of plans: the codec of each tensor, the cuts into segments, and the segments that travel together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Literal

from psnode.codecs.registry import known_codec
from psnode.config import Config
from psnode.config.scheme import Scheme
from psnode.errors import ConfigurationError
from psnode.plans.coding import is_in_vain
from psnode.plans.groups import IDENTITY, Group, Plan, Segment, Tensor

GroupBy = Literal["layer", "bytes", "model"]
PARTITION = 4096  # flat segments are cut at multiples of this many coordinates
_TALL = 4  # least ratio of rows to columns in the blocks of a tensor that is coded by its shape
DEFAULT_GROUP_BYTES = 16 << 20
SMALL_MODEL_BYTES = 4 << 20  # a model up to this size is one group, if `group_bytes` allows it
_LAST_GROUP_BYTES = 1 << 20  # in a larger model, the remaining tensors form one group if they have at most this size
_SCRAP_BYTES = 1 << 16  # remaining tensors up to this size join the previous group
MAX_SEGMENT = 1 << 28  # largest number of coordinates in a payload


def make_plan(
    tensors: Sequence[Tensor],
    codec: str,
    *,
    group_by: GroupBy = "bytes",
    group_bytes: int = DEFAULT_GROUP_BYTES,
    min_compress_bytes: int = 4096,
    whole_tensors: bool = False,
    code_small: bool = False,
) -> Plan:
    """Return the plan for `tensors`, which are given in the order in which their gradients finish.

    Three kinds of tensors travel uncompressed (codec `identity`): tensors with fewer than two dimensions, tensors smaller than
    `min_compress_bytes`, and, unless the codec is adaptive, tensors whose payload could be as large as the tensor. Within a
    group the coded tensors come before the uncompressed ones, so that each codec gets one long run. A codec that needs shapes
    gets large embeddings in blocks of rows.

    No segment and no group of several segments has more than MAX_SEGMENT coordinates. Raises ConfigurationError for a larger
    tensor that the codec cannot code in pieces. With `whole_tensors` groups end where tensors end.

    With `code_small`, a codec that needs no shapes codes small tensors as well. If the codec can also code several tensors in
    one call, it codes segments of small and large tensors together. Such a segment travels uncompressed only if its payload
    would not be smaller.
    """
    if not tensors:
        raise ConfigurationError("the model has no trainable parameters")
    limit = group_bytes if group_by == "bytes" else math.inf
    runs = [(members, codec, limit) for members in _fuse(tensors, group_by, group_bytes)]
    return assembled(runs, min_compress_bytes=min_compress_bytes, whole_tensors=whole_tensors, code_small=code_small)


def assembled(
    runs: Iterable[tuple[Sequence[Tensor], str, float]],
    *,
    min_compress_bytes: int = 4096,
    whole_tensors: bool = False,
    code_small: bool = False,
) -> Plan:
    """Return the plan whose groups are made of `runs`.

    A run is a triple: neighbouring tensors, the codec of those tensors that are coded, and the approximate bytes of a segment.
    A run of at least 1.5 times this size becomes several groups, if it can be cut. All other rules, and the errors, are those
    of make_plan.
    """
    ordered: list[Tensor] = []
    groups: list[Group] = []
    start = index = 0
    for tensors, codec, limit in runs:
        joins = code_small and _joins(codec)
        chosen = {
            tensor.name: codec_in_plan(tensor, codec, min_compress_bytes=min_compress_bytes, code_small=code_small)
            for tensor in tensors
        }
        members = sorted(tensors, key=lambda tensor: chosen[tensor.name] == IDENTITY)
        ordered += members
        shapes: list[tuple[str, tuple[int, ...]]] = []
        for spec, run in groupby(members, key=lambda tensor: chosen[tensor.name]):
            pieces = _cut(list(run), spec, limit)
            shapes += [(IDENTITY if joins and is_in_vain(known_codec(spec), shape) else spec, shape) for shape in pieces]
        if whole_tensors and sum(tensor.size for tensor in members) > MAX_SEGMENT:
            raise ConfigurationError(
                f"{members[0].name} is in a group of more than {MAX_SEGMENT} values, and the optimizer needs whole tensors: "
                "choose another --optimizer, or --group-by bytes"
            )
        for piece in [shapes] if whole_tensors else _partition(shapes, min(1.5 * limit, 4 * MAX_SEGMENT)):
            segments = []
            for spec, shape in piece:
                segments.append(Segment(index, spec, start, shape))
                start += segments[-1].size
                index += 1
            groups.append(Group(len(groups), tuple(segments)))
    return Plan(tuple(ordered), tuple(groups))


def plan_of(tensors: Sequence[Tensor], scheme: Scheme, config: Config) -> Plan:
    """Return the plan of `tensors` under `scheme` and the settings of `config`."""
    return make_plan(tensors, scheme.codec, **grouping_of(config) | {"group_bytes": config.group_bytes or DEFAULT_GROUP_BYTES})


def grouping_of(config: Config) -> dict[str, Any]:
    """Return the settings with which make_plan groups tensors, by name.

    `group_bytes` is 0 if this size is chosen when a job starts.
    """
    return {
        "group_by": config.group_by, "group_bytes": config.group_bytes, "min_compress_bytes": config.min_compress_bytes,
        "whole_tensors": config.whole_tensors, "code_small": config.small_tensors == "coded",
    }  # fmt: skip


def codec_in_plan(tensor: Tensor, spec: str, *, min_compress_bytes: int = 4096, code_small: bool = False) -> str:
    """Return the codec with which a plan codes `tensor` when `spec` is requested: either `spec` or `identity` (see make_plan).

    Raises ConfigurationError for a tensor that the codec cannot code.
    """
    codec = known_codec(spec)
    if code_small and _joins(spec):
        return spec
    if (codec.shaped or not code_small) and (len(tensor.shape) < 2 or 4 * tensor.size < min_compress_bytes):
        return IDENTITY
    if codec.shaped and max(map(math.prod, _row_blocks(tensor.shape, 4 * MAX_SEGMENT))) > MAX_SEGMENT:
        raise ConfigurationError(
            f"parameter {tensor.name} has {tensor.size} values, codec {spec} takes at most {MAX_SEGMENT} of a tensor, "
            "which it cannot cut: choose another --scheme or --codec"
        )
    shape = tensor.shape if codec.shaped or tensor.size <= MAX_SEGMENT else (MAX_SEGMENT,)
    return IDENTITY if is_in_vain(codec, shape) else spec


def _joins(spec: str) -> bool:
    """Return True if one call of the codec can code several tensors together, whatever their sizes."""
    codec = known_codec(spec)
    return not codec.shaped and not codec.traits.one_scale


def _fuse(tensors: Sequence[Tensor], group_by: GroupBy, group_bytes: int) -> list[list[Tensor]]:
    """Return runs of neighbouring tensors. Each run becomes one group, unless `_partition` cuts it.

    Groups of `group_bytes` need few frames. But the work on the last group (coding, sending, adding, sending back) begins
    after the backward pass, so no computation overlaps with it, and this group should be small. Therefore a group ends as soon
    as it has two thirds of the bytes that were left at its beginning.
    """
    if group_by == "model":
        return [list(tensors)]
    if group_by == "layer":
        return [list(run) for _, run in groupby(tensors, key=lambda tensor: tensor.name.rpartition(".")[0])]
    left = 4 * sum(tensor.size for tensor in tensors)
    runs: list[list[Tensor]] = []
    least = SMALL_MODEL_BYTES if left <= SMALL_MODEL_BYTES else _LAST_GROUP_BYTES
    size, enough = 0, 0.0
    for tensor in tensors:
        nbytes = 4 * tensor.size
        if not runs or (size >= enough and left > _SCRAP_BYTES) or size + nbytes > group_bytes:
            runs.append([])
            size, enough = 0, 2 * left / 3 if left > least else math.inf
        runs[-1].append(tensor)
        size += nbytes
        left -= nbytes
    return runs


def _cut(run: Sequence[Tensor], spec: str, limit: float) -> list[tuple[int, ...]]:
    """Return the shapes of the segments of a `run` of tensors with the same codec. A segment has about `limit` bytes."""
    codec = known_codec(spec)
    if codec.shaped:
        return [shape for tensor in run for shape in _row_blocks(tensor.shape, limit)]
    if codec.traits.one_scale:
        return [shape for tensor in run for shape in _pieces(tensor.size, limit)]
    return _pieces(sum(tensor.size for tensor in run), limit)


def _row_blocks(shape: tuple[int, ...], limit: float) -> list[tuple[int, ...]]:
    """Return the shapes of blocks of rows, of about `limit` bytes each, into which an array of `shape` is cut.

    The array, for example an embedding, is cut only if the blocks are much taller than wide. A low-rank codec codes each block
    separately, and every term of a block costs rows + columns values. In tall blocks the columns add at most a quarter to the
    cost.
    """
    rows, columns = shape[0], math.prod(shape[1:])
    limit = min(limit, 4 * MAX_SEGMENT)
    count = min(max(1, round(4 * rows * columns / limit)), rows // max(1, _TALL * columns))
    if count < 2:
        return [shape]
    step = -(-rows // count)
    return [(min(step, rows - start), *shape[1:]) for start in range(0, rows, step)]


def _pieces(size: int, limit: float) -> list[tuple[int, ...]]:
    """Cut `size` coordinates into flat segments of about `limit` bytes. Return their shapes."""
    count = max(1, round(4 * size / limit), -(-size // MAX_SEGMENT))
    step = max(1, -(-size // (count * PARTITION))) * PARTITION
    return [(min(step, size - start),) for start in range(0, max(size, 1), step)]


def _partition(shapes: Sequence[tuple[str, tuple[int, ...]]], limit: float) -> list[list[tuple[str, tuple[int, ...]]]]:
    """Cut a list of segments into groups. Each group has less than `limit` bytes or only one segment."""
    pieces: list[list[tuple[str, tuple[int, ...]]]] = []
    total = math.inf
    for spec, shape in shapes:
        nbytes = 4 * math.prod(shape)
        if total + nbytes >= limit:
            pieces.append([])
            total = 0
        pieces[-1].append((spec, shape))
        total += nbytes
    return pieces
