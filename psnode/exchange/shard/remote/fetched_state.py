"""Weights and memories of all shards of a run, which the master fetches when it needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from psnode.codecs.arrays import Floats
from psnode.exchange.shard.remote.coming_state import files_of_answer, flat, shard_state
from psnode.exchange.shard.remote.gathered_state import JoinedState
from psnode.exchange.shard.remote.own_shard import OwnShard
from psnode.exchange.shard.state import ShardState
from psnode.exchange.update.served_model import ServedModel
from psnode.plans.groups import Plan
from psnode.plans.part import PlanPart
from psnode.plans.roles import MASTER
from psnode.protocol.wire import Frame
from psnode.records import checkpoint

Tensors = dict[str, torch.Tensor]


class FetchedState:
    """State of all shards, fetched once per version. `parts`: by rank, the parts of `plan` that the shards have.

    `fetch`: a function that asks other ranks for their state, one after another, and yields each rank with its answer. Each
    group occurs in only one answer. So a fetch needs memory for the whole state and for one answer at a time. `own`: the
    master's own shard, or None. `weights`: the master's model, which has the newest x after a call of `digest`.
    """

    def __init__(
        self, fetch: Callable[[], Iterable[tuple[int, Frame]]], parts: Mapping[int, PlanPart], plan: Plan, weights: ServedModel,
        own: OwnShard | None,
    ) -> None:  # fmt: skip
        self._fetch, self._parts, self._plan, self._weights, self._own = fetch, parts, plan, weights, own
        self._known: JoinedState | None = None  # until a group changes

    def changed(self) -> None:
        """Discard the fetched state, since a group has changed on another rank."""
        self._known = None

    @property
    def replica(self) -> Floats:
        """y, the weights that every recipient holds, flat in the order of the plan."""
        files = self._files()
        named = files.get(checkpoint.REPLICA) or {f"replica/{name}": value for name, value in files[checkpoint.MODEL].items()}
        found: Floats = flat({name.partition("/")[2]: value for name, value in named.items()}, self._plan).numpy()
        return found

    def digest(self) -> str:
        """Return xxh3_128 of the bytes of all weights."""
        flat(self._files()[checkpoint.MODEL], self._plan, out=self._weights.vector)
        return self._weights.digest()

    def copies(self) -> ShardState:
        """Return copies of the state: the model, the optimizer's memories, and y, the weights that every recipient holds."""
        return shard_state(self._files(), self._plan, self._weights)

    def norms(self) -> Tensors:
        """Return the norms of pushes with which later pushes are compared."""
        return dict(self._files().get(checkpoint.NORMS, {}))

    def _files(self) -> dict[str, Tensors]:
        """Return the tensors of all groups, by file of a checkpoint. They are fetched unless they are known."""
        if self._known is None:
            known = JoinedState()
            if self._own is not None:
                known.add(self._parts[MASTER], self._own.files())
            for rank, frame in self._fetch():
                content = bytes(frame.body)
                frame.release()  # before its tensors are copied once more
                known.add(self._parts[rank], files_of_answer(rank, self._parts[rank], content))
            self._known = known
        return self._known.files
