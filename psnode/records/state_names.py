"""Names of the state in a checkpoint. State is named by tensor, so that a reader may have other groups and segments.

    state/optimizer.safetensors   MEMORY/TENSOR             momentum_buffer; exp_avg, exp_avg_sq, step; ...
                                  MEMORY:TYPE/TENSOR        a number (bool, int, float) of an optimizer of whole tensors
                                  @GROUP.KEY:TYPE/TENSOR    a number in its parameter group, by the group's index
    state/replica.safetensors     replica/TENSOR
    state/norms.safetensors       RANK/RANGE                norms of the pushes of a group
    worker-003.safetensors        feedback/MEMORY/TENSOR    residual, momentum, velocity, average; rate
                                  feedback/codebook/RANGE   of a segment

MEMORY is the name of an array that the optimizer or the feedback rule keeps between steps. The array is flat float32, in the
order of the tensor's coordinates, independent of how the tensor was split into segments. Optimizers of whole tensors keep arrays
with other shapes and types. A `step` or a `rate` is one number per tensor; if the groups or segments of the tensor have different
numbers, it is one number per coordinate. A RANGE gives the beginning and the end of a group or a segment, each as the name of a
tensor and an offset. Another plan can use state named by a RANGE only if the plan has the same range.

This is layout 2. Layout 1 named state by the indices of groups and segments. To read it, the plan of the writer is required.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

import xxhash

from psnode.config.plain_json import to_json
from psnode.errors import CheckpointError
from psnode.plans.groups import Plan
from psnode.records import tensorfile
from psnode.records.checkpoint import MODEL, NORMS, OPTIMIZER, REPLICA, Checkpoint, is_worker_file

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

FEEDBACK = "feedback/"
CODEBOOK = "codebook"
BOOKS = f"{FEEDBACK}{CODEBOOK}/"
RATE = "rate"
STEP = "step"
WHOLE = "whole"  # in place of a RANGE: norms of whole gradients
LARGEST = "largest"
_SCRATCH = "sent"  # an array that layout 1 stored although it was not needed


class CoordinateRange(Protocol):
    """A group, a segment, or a run of equal numbers: coordinates [start, stop) of the flat vector."""

    @property
    def start(self) -> int:
        """Return the first coordinate."""

    @property
    def stop(self) -> int:
        """Return the coordinate after the last one."""


class ConstantRange(NamedTuple):
    """One number for the coordinates [start, stop) of the flat vector."""

    start: int
    stop: int
    value: float


def digest(plan: Plan) -> str:
    """Return the xxh3_64 of a plan, in hexadecimal, as a manifest records it."""
    return f"{xxhash.xxh3_64_intdigest(to_json(plan.to_dict(), sort_keys=True).encode()):016x}"


def places(plan: Plan) -> dict[str, slice]:
    """Return the range of each tensor in the flat vector, by name. Tensors without coordinates are left out."""
    return {name: where for name, where in plan.slices().items() if where.start < where.stop}


def overlaps(plan: Plan, parts: Iterable[CoordinateRange]) -> list[dict[str, slice]]:
    """Return, for each part, the tensors that have coordinates in it, in order, each with a slice.

    The slice gives, in the flat vector, the tensor's coordinates that lie in the part.
    """
    tensors = list(places(plan).items())
    starts = [where.start for _, where in tensors]
    found = []
    for part in parts:
        inside: dict[str, slice] = {}
        for index in range(max(0, bisect_right(starts, part.start) - 1), bisect_left(starts, part.stop)):
            name, where = tensors[index]
            inside[name] = slice(max(part.start, where.start), min(part.stop, where.stop))
        found.append(inside if part.start < part.stop else {})
    return found


def ranges(plan: Plan, parts: Sequence[CoordinateRange]) -> list[str]:
    """Return for each group or segment in `parts` a name that other plans can use too.

    The name is FIRST:OFFSET..LAST:OFFSET, with the names of tensors and the offsets in them. An empty part has the name "".
    """
    where, found = places(plan), []
    for inside in overlaps(plan, parts):
        edges = [(name, edge) for name in (*inside,) for edge in (inside[name].start, inside[name].stop)]
        ends = [f"{name}:{edge - where[name].start}" for name, edge in (edges[0], edges[-1])] if edges else []
        found.append("..".join(ends))
    return found


def spread(plan: Plan, runs: Sequence[ConstantRange], dtype: torch.dtype) -> Tensors:
    """Return the numbers in `runs`, which are in ascending order, as one tensor of `dtype` for each tensor of the plan.

    A tensor of the result has one element if all its coordinates have the same number, otherwise one element per coordinate.
    Coordinates outside `runs` get 0; tensors wholly outside are left out.
    """
    import torch

    where = places(plan)
    told: dict[str, list[ConstantRange]] = {}
    for run, inside in zip(runs, overlaps(plan, runs), strict=True):
        for name, part in inside.items():
            told.setdefault(name, []).append(
                ConstantRange(part.start - where[name].start, part.stop - where[name].start, run.value)
            )
    found = {}
    for name, pieces in told.items():
        size = where[name].stop - where[name].start
        if len({piece.value for piece in pieces}) == 1 and sum(piece.stop - piece.start for piece in pieces) == size:
            found[name] = torch.tensor([pieces[0].value], dtype=dtype)
            continue
        found[name] = torch.zeros(size, dtype=dtype)
        for piece in pieces:
            found[name][piece.start : piece.stop] = piece.value
    return found


def collected(plan: Plan, tensors: Mapping[str, torch.Tensor], prefix: str) -> list[ConstantRange]:
    """Return the runs of equal numbers from which `spread` made `tensors`. A name in `tensors` is `prefix` plus a tensor's name.

    A missing tensor counts as 0. Raises CheckpointError for a tensor with the wrong number of values.
    """
    import torch

    found: list[ConstantRange] = []
    for name, where in places(plan).items():
        values = tensors.get(f"{prefix}{name}", torch.zeros(1))
        size = where.stop - where.start
        if values.dim() != 1 or values.numel() not in (1, size):
            raise CheckpointError(f"the checkpoint does not fit this run: {prefix}{name} has the shape {tuple(values.shape)}")
        numbers, counts = torch.unique_consecutive(values, return_counts=True)
        start = where.start
        for value, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            stop = start + (count if values.numel() == size else size)
            if found and found[-1].value == value:
                found[-1] = found[-1]._replace(stop=stop)
            else:
                found.append(ConstantRange(start, stop, value))
            start = stop
    return found


def within(runs: Iterable[ConstantRange], part: CoordinateRange) -> list[ConstantRange]:
    """Return the pieces of `runs` inside `part`, in order."""
    cut = [ConstantRange(max(run.start, part.start), min(run.stop, part.stop), run.value) for run in runs]
    return [run for run in cut if run.start < run.stop]


def state_of(found: Checkpoint, file: str) -> Tensors:
    """Return the tensors of a state file under the names of layout 2.

    Raises CheckpointError if the file is damaged, or if it has layout 1 and its plan is unknown.
    """
    tensors = found.tensors(file)
    if found.layout > 1:
        return tensors
    if found.plan is None:
        raise CheckpointError(f"{found.path / file} has layout 1, and the plan that wrote it is unknown")
    return _upgraded(file, tensors, found.plan)


def fits(found: Checkpoint, plan: Plan) -> bool:
    """Return True if a checkpoint was written with `plan`, so that a run with `plan` can use all of its state."""
    if found.layout == 1:
        return found.plan == plan
    return found.facts.get("plan") == digest(plan) or found.facts.get("plan") == digest(_as_named(found, plan))


def _as_named(found: Checkpoint, plan: Plan) -> Plan:
    """Return `plan` with the names that an earlier version of psnode gave to the tensors of a compiled model."""
    if found.renaming is str:
        return plan
    before = {found.renaming(name): name for name in tensorfile.names(found.path / MODEL)}
    return replace(plan, tensors=tuple(replace(tensor, name=before.get(tensor.name, tensor.name)) for tensor in plan.tensors))


def homeless(found: Checkpoint, plan: Plan) -> tuple[int, int]:
    """Return two counts of state in a checkpoint that a run with `plan` cannot use.

    These are the number of a worker's codebooks, and the number of groups with norms.
    """
    segments, groups = set(ranges(plan, plan.segments)), set(ranges(plan, plan.groups))
    workers = [name for name in found.facts["files"] if is_worker_file(name)]
    memories = state_of(found, workers[0]) if workers else {}
    books = {key.removeprefix(BOOKS) for key in memories if key.startswith(BOOKS)}
    norms = {key.partition("/")[2] for key in state_of(found, NORMS) if key != LARGEST} if found.has(NORMS) else set()
    return len(books - segments), len(norms - groups - {WHOLE})


def _upgraded(file: str, tensors: Tensors, plan: Plan) -> Tensors:
    """Return the tensors of a file of layout 1 under the names of layout 2."""
    if file == REPLICA and set(tensors) == {"replica"} and tensors["replica"].shape == (plan.size,):
        return {f"replica/{name}": tensors["replica"][where] for name, where in places(plan).items()}
    if file == OPTIMIZER:
        return _by_tensor(file, _with_idle_groups(tensors, plan), plan, plan.groups, "")
    if file == NORMS:
        names = ranges(plan, plan.groups)
        return {f"{rank}/{names[index]}": value for index, rank, value in _indexed(file, tensors, len(names))}
    if is_worker_file(file):
        rest = {key: value for key, value in tensors.items() if not key.startswith(FEEDBACK)}
        memories = {key.removeprefix(FEEDBACK): value for key, value in tensors.items() if key not in rest}
        return rest | _by_tensor(file, memories, plan, plan.segments, FEEDBACK)
    return tensors


def _with_idle_groups(tensors: Tensors, plan: Plan) -> Tensors:
    """Return an optimizer's state with zeros for groups that were never updated, which layout 1 left out."""
    import torch

    memories = {key.partition("/")[2] for key in tensors}
    idle = {f"{group.index}/{name}": torch.zeros(1 if name == STEP else group.size) for group in plan.groups for name in memories}
    return idle | tensors


def _indexed(file: str, tensors: Tensors, count: int) -> Iterator[tuple[int, str, torch.Tensor]]:
    """Yield index, name and value of tensors named INDEX/NAME.

    Raises CheckpointError if INDEX is not a number below `count`, the number of groups or segments.
    """
    for key, value in tensors.items():
        index, _, name = key.partition("/")
        if not index.isdecimal() or int(index) >= count:
            raise CheckpointError(f"{file} of the checkpoint does not fit the run's plan: it holds {key[:60]!r}")
        yield int(index), name, value


def _by_tensor(file: str, tensors: Tensors, plan: Plan, parts: Sequence[CoordinateRange], prefix: str) -> Tensors:
    """Return the state of groups or segments, named INDEX/MEMORY, under the names of layout 2."""
    found: Tensors = {}
    names = ranges(plan, parts)
    memories: dict[str, list[tuple[CoordinateRange, torch.Tensor]]] = {}
    for index, memory, value in _indexed(file, tensors, len(parts)):
        if memory == CODEBOOK:
            found[f"{BOOKS}{names[index]}"] = value
        elif memory != _SCRATCH:
            memories.setdefault(memory, []).append((parts[index], value))
    for memory, pieces in memories.items():
        for part, value in pieces:
            if value.numel() != (1 if memory in (STEP, RATE) else part.stop - part.start):
                raise CheckpointError(
                    f"{file} of the checkpoint does not fit the run's plan: {memory} has {value.numel()} values"
                )
        joined = _joined(memory, sorted(pieces, key=lambda piece: piece[0].start), plan)
        found |= {f"{prefix}{memory}/{name}": value for name, value in joined.items()}
    return found


def _joined(memory: str, pieces: Sequence[tuple[CoordinateRange, torch.Tensor]], plan: Plan) -> Tensors:
    """Return the array `memory` of each tensor, assembled from `pieces`. Coordinates outside the pieces get zeros."""
    import torch

    if memory in (STEP, RATE):
        return spread(plan, [ConstantRange(part.start, part.stop, value.item()) for part, value in pieces], pieces[0][1].dtype)
    whole = torch.zeros(plan.size)
    for part, value in pieces:
        whole[part.start : part.stop] = value.reshape(-1)
    names = {name for inside in overlaps(plan, [part for part, _ in pieces]) for name in inside}
    return {name: whole[where] for name, where in places(plan).items() if name in names}
