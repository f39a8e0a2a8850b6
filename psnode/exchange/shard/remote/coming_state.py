"""State of one version of all shards. Its parts come from other ranks while later versions are made."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from psnode.errors import WireError
from psnode.exchange.shard.remote.gathered_state import JoinedState, check
from psnode.exchange.shard.remote.shard_calls import broken
from psnode.exchange.shard.remote.shard_messages import unpack_files
from psnode.exchange.shard.state import ShardState
from psnode.exchange.update.served_model import ServedModel
from psnode.plans.groups import Plan
from psnode.plans.part import PlanPart
from psnode.records import checkpoint, state_names

Tensors = dict[str, torch.Tensor]


class ComingState:
    """Parts of the state of one version, joined as they come, see StateParts.

    `plan`: the plan of all groups. `parts`: by rank, the parts of `plan` that are awaited. `weights`: the master's model,
    whose trained parameters are replaced by those in the parts. `seconds`: the time within which all parts should come. Only
    one thread at a time may call the methods.
    """

    def __init__(self, plan: Plan, parts: Mapping[int, PlanPart], weights: ServedModel, seconds: float) -> None:
        self._plan, self._parts, self._weights = plan, dict(parts), weights
        self._joined = JoinedState()
        self.ranks, self.seconds = frozenset(parts), seconds

    def hold(self, part: PlanPart, files: Mapping[str, Tensors]) -> None:
        """Add the tensors of a part that is already on this rank. `files`: its tensors, by file of a checkpoint."""
        self._joined.add(part, files)

    def add(self, rank: int, content: bytes) -> bool:
        """Add the part that `rank` has handed over. Return True if all parts have come.

        `content`: the part in the form of a safetensors file. Raises PsnodeError, naming `rank`, if `content` is not its part.
        """
        self._joined.add(self._parts[rank], files_of_answer(rank, self._parts[rank], content))
        del self._parts[rank]
        return not self._parts

    def state(self) -> ShardState:
        """Return the state: the model, the optimizer's memories, and y. Call this after all parts have come."""
        return shard_state(self._joined.files, self._plan, self._weights)

    def norms(self) -> Tensors:
        """Return the norms of pushes with which later pushes are compared. Call this after all parts have come."""
        return dict(self._joined.files.get(checkpoint.NORMS, {}))


def files_of_answer(rank: int, part: PlanPart, content: bytes) -> dict[str, Tensors]:
    """Return the tensors in the message with which a shard hands over its state, by file of a checkpoint.

    Raises PsnodeError, naming `rank`, for an invalid message.
    """
    try:
        files, _ = unpack_files(content, rank)
        check(part, files, rank)
    except WireError as error:
        raise broken(rank, error) from error
    return files


def shard_state(files: Mapping[str, Tensors], plan: Plan, weights: ServedModel) -> ShardState:
    """Return the state of all groups of `plan`, made of `files`: the tensors of all parts, by file of a checkpoint.

    Tensors of the model that are not trained come from `weights`.
    """
    average = files.get(checkpoint.EMA) or {}
    return ShardState(
        weights.state(flat(files[checkpoint.MODEL], plan)),
        dict(files.get(checkpoint.OPTIMIZER, {})),
        dict(files.get(checkpoint.REPLICA, {})),
        weights.state(flat(average, plan)) if average else {},
    )


def flat(tensors: Mapping[str, torch.Tensor], plan: Plan, out: torch.Tensor | None = None) -> torch.Tensor:
    """Return the trained tensors as one float32 vector in the order of `plan`. The values are written to `out` if it is given."""
    vector = torch.empty(plan.size) if out is None else out
    for name, where in state_names.places(plan).items():
        vector[where] = tensors[name].reshape(-1)
    return vector
