"""State of all shards of a run, by file of a checkpoint. It is joined from the parts of the shards, or cut into these parts.

psnode.exchange.shard.state.own_tensors cuts the state; JoinedState is the inverse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from psnode.errors import WireError
from psnode.exchange.shard.handle import StateHandle
from psnode.exchange.shard.state import own_tensors
from psnode.exchange.update.served_model import ServedModel
from psnode.plans.part import PlanPart
from psnode.records import checkpoint, state_names
from psnode.records.checkpoint import Checkpoint

Tensors = dict[str, torch.Tensor]
_OF_MEMORIES = (checkpoint.OPTIMIZER, checkpoint.REPLICA)  # files whose names are MEMORY/TENSOR


def state_files(shard: StateHandle) -> dict[str, Tensors]:
    """Return the tensors of a shard, by file of a checkpoint. Call this while no group is open."""
    state = shard.state()
    return {
        checkpoint.MODEL: state.model,
        checkpoint.OPTIMIZER: state.optimizer,
        checkpoint.REPLICA: state.replica,
        checkpoint.EMA: state.average,
        checkpoint.NORMS: shard.norms(),
    }


def starting_state(part: PlanPart, found: Checkpoint | None, weights: ServedModel) -> tuple[dict[str, Tensors], dict[str, Any]]:
    """Return the tensors with which a shard of `part` starts, by file of a checkpoint, and entries of the manifest.

    They come from the checkpoint `found`. If it is None, they come from `weights`, and the step is 0. Raises CheckpointError
    for a damaged file.
    """
    if found is not None:
        return files_of(part, found), {key: value for key, value in found.facts.items() if isinstance(value, int | float | str)}
    state = weights.state()
    model = own_tensors(part, {name: state[name] for name in part.whole.slices()}, memories=False)
    replica = {f"replica/{name}": value.reshape(-1) for name, value in model.items()}
    return {checkpoint.MODEL: model, checkpoint.REPLICA: replica, checkpoint.OPTIMIZER: {}}, {"step": 0}


def files_of(part: PlanPart, found: Checkpoint) -> dict[str, Tensors]:
    """Return the tensors of `part` in the checkpoint `found`, by file. Raises CheckpointError for a damaged file."""
    trained, files = part.whole.slices(), dict[str, Tensors]()
    for file in (checkpoint.MODEL, checkpoint.EMA):
        if found.has(file):
            tensors = {name: value for name, value in found.tensors(file).items() if name in trained}
            files[file] = own_tensors(part, tensors, memories=False)
    for file in _OF_MEMORIES:
        if found.has(file):
            files[file] = own_tensors(part, state_names.state_of(found, file), memories=True)
    if found.has(checkpoint.NORMS):
        files[checkpoint.NORMS] = state_names.state_of(found, checkpoint.NORMS)
    return files


def check(part: PlanPart, files: Mapping[str, Tensors], rank: int) -> None:
    """Raise WireError unless the weights in `files` have the names and sizes of the part's tensors.

    The same is checked for y and for averages, if `files` has them.
    """
    sizes = {name: where.stop - where.start for name, where in state_names.places(part.own).items()}
    model = files.get(checkpoint.MODEL, {})
    if {name: value.numel() for name, value in model.items()} != sizes:
        raise WireError("its weights are not those of its groups", rank)
    for file in (checkpoint.REPLICA, checkpoint.EMA):
        named = {name.removeprefix("replica/"): value.numel() for name, value in files.get(file, {}).items()}
        if named and named != sizes:
            raise WireError(f"its {file} is not that of its groups", rank)


class JoinedState:
    """State made of the parts that were added so far. `files`: the tensors by file of a checkpoint, complete after the last part.

    If a part holds only a piece of a tensor, the piece is copied to its position in the whole tensor when the part is added.
    So the part need not be kept.
    """

    def __init__(self) -> None:
        self.files: dict[str, Tensors] = {}
        # by file and key, the parts whose piece of a tensor is one number for all of its values, while these numbers are equal
        self._numbers: dict[tuple[str, str], list[PlanPart]] = {}

    def add(self, part: PlanPart, files: Mapping[str, Tensors]) -> None:
        """Add the tensors of a part, by file. Whole tensors are not copied."""
        for file, tensors in files.items():
            found = self.files.setdefault(file, {})
            for key, value in tensors.items():
                name = key.partition("/")[2] if file in _OF_MEMORIES else key
                if file == checkpoint.NORMS:
                    _add_norms(found, key, value)
                elif name in part.pieces:
                    self._add_piece(file, key, name, part, value)
                else:
                    found[key] = value

    def _add_piece(self, file: str, key: str, name: str, part: PlanPart, value: torch.Tensor) -> None:
        """Add a piece of the tensor `name`. `value`: the values of the piece, or one number that stands for all of them."""
        found, numbers = self.files[file], self._numbers.setdefault((file, key), [])
        if value.numel() == 1 and (key not in found or (numbers and value.equal(found[key]))):
            found[key] = value
            numbers.append(part)
            return
        if key not in found or numbers:
            place = part.whole.slices()[name]
            whole = torch.zeros(place.stop - place.start, dtype=value.dtype)
            for other in numbers:
                _put(whole, other.pieces[name], found[key])
            found[key] = whole
            numbers.clear()
        _put(found[key], part.pieces[name], value)


def _put(whole: torch.Tensor, places: Iterable[slice], value: torch.Tensor) -> None:
    """Copy a piece to its positions, `places`, in a flat tensor. If the piece is one number, fill the positions with it."""
    start = 0
    for where in places:
        size = where.stop - where.start
        whole[where] = value if value.numel() == 1 else value.reshape(-1)[start : start + size]
        start += size


def _add_norms(norms: Tensors, key: str, value: torch.Tensor) -> None:
    """Add the norms of one shard. If another shard has norms of the same name, keep those whose maximum is largest."""
    norms[key] = value if key not in norms or value.max() > norms[key].max() else norms[key]
