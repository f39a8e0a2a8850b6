"""The states of all ranks' hooks in one object, for a checkpoint that one rank writes and all ranks read."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from psnode.ddp.hook import HookState
from psnode.errors import ConfigurationError, PsnodeError

_log = logging.getLogger(__name__)


class AllRanks:
    """Combines the hook's state on all ranks, with the methods `state_dict` and `load_state_dict`.

    This class is for libraries in which rank 0 saves objects that have these two methods, such as Accelerate with
    `Accelerator.register_for_checkpointing`. The residual of one rank is as large as the coded gradients in float32. Saving
    sends the states of all ranks to rank 0, tensor by tensor. So rank 0 needs memory for all states, and the other ranks need
    no further memory. During loading every rank needs memory for all states.
    """

    def __init__(self, state: HookState) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """Return, on rank 0, the states of all ranks. On other ranks, return the same dict without feedback states.

        All ranks must call this together.
        """
        exchange, arrays = self._state.exchange, dict(sorted(self._state.arrays().items()))
        names = exchange.sizes([zlib.crc32("\n".join(arrays).encode())])
        if (names != names[0]).any():
            raise PsnodeError("communication hooks of different ranks remember different tensors: save each rank's state_dict()")
        states: list[dict[str, torch.Tensor]] = [{} for _ in range(exchange.ranks if exchange.rank == 0 else 0)]
        for key, array in arrays.items():
            for state, found in zip(states, exchange.at_first(torch.from_numpy(array)), strict=True):
                state[key] = found
        return {"ranks": exchange.ranks, **self._state.start(), "states": states}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue with this rank's own state, or with the mean of all states if the number of ranks has changed.

        The mean preserves the correction that the weights have not received yet (docs/decisions/another-number-of-workers.md). If
        the mean is used, rank 0 logs a warning. Raises ConfigurationError unless `saved` is the result of rank 0.
        """
        if not {"ranks", "states", "step", "buckets"} <= saved.keys():
            raise ConfigurationError("not a state of all ranks' communication hooks: load the result of AllRanks.state_dict()")
        states = saved["states"]
        if len(states) != saved["ranks"]:
            raise ConfigurationError("the state of the communication hooks was saved by another rank than 0, and has no memories")
        rank, ranks = self._state.place()
        if ranks == len(states):
            own = states[rank]
        else:
            own = _mean(states)
            if rank == 0:
                _log.warning("psnode: %d ranks continue with the mean of the memories of %d", ranks, len(states))
        start = {key: saved[key] for key in ("step", "buckets", "scale") if key in saved}
        self._state.load_state_dict({**start, **own})


def _mean(states: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the mean of all ranks' feedback states, with the codebooks of rank 0."""
    found = {}
    for key, first in states[0].items():
        if key.startswith("memories/"):
            total = first.to(torch.float64)
            for state in states[1:]:
                total += state[key]
            first = (total / len(states)).to(torch.float32)
        found[key] = first
    return found
