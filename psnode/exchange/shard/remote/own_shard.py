"""The master's own shard in a run with shards on other ranks. It carries out the same orders and returns the same files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from psnode.exchange.shard.remote.gathered_state import state_files
from psnode.exchange.shard.shard import Shard
from psnode.protocol.round import Round

Tensors = dict[str, torch.Tensor]


class OwnShard:
    """The master's own `shard`. Like shards on other ranks, it is given orders by name."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._orders = {**orders_of(shard), "open": self._open}

    def obey(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Carry out an order and return its result."""
        return self._orders[name](**arguments)

    def _open(self, version: int, first_step: int, steps: int, lr: float) -> None:
        """Open a round. `lr` is not used, since this shard knows the learning rate from the master's schedule."""
        self.shard.open(Round(version, first_step, steps))

    def files(self) -> dict[str, Tensors]:
        """Return copies of the shard's tensors, by file of a checkpoint."""
        files = state_files(self.shard)
        return {file: {name: value.detach().clone() for name, value in tensors.items()} for file, tensors in files.items()}


def orders_of(shard: Shard) -> dict[str, Callable[..., Any]]:
    """Return, by name, functions that carry out those orders that all shards carry out in the same way."""
    return {
        "admit": shard.admit,
        "excuse": shard.excuse,
        "send_to": shard.send_to,
        "send_whole": shard.send_whole,
        "norm": shard.settle_norm,
        "missing": lambda: sorted(shard.missing),
        "do_without": lambda rank: sorted(shard.withdraw(rank).items()),
        "force": shard.force,
        "untouched": lambda: shard.untouched,
    }
