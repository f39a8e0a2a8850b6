"""Exchange of payloads through torch.distributed: all ranks gather them, or an all-reduce sums them undecoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from psnode.codecs import Payload
from psnode.codecs.sketches.linear import cells_of

Sizes = npt.NDArray[np.int64]
_ALIGNED = 4  # payloads begin at multiples of this number of bytes


class Collectives:
    """Exchange among the ranks of a gloo process group, with arrays on the host. Only one thread may call it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.ranks = dist.get_world_size(group)

    @classmethod
    def among(cls, parent: dist.ProcessGroup | None) -> Self:
        """Create an exchange among the ranks of the process group `parent`, or among all ranks if `parent` is None.

        The exchange has a process group of its own. All its ranks must make this call together.
        """
        ranks = dist.get_process_group_ranks(parent or dist.group.WORLD)
        return cls(dist.new_group(ranks, backend="gloo", use_local_synchronization=True))

    def sizes(self, own: Sequence[int]) -> Sizes:
        """Gather a list of integers from every rank. Return an array of shape (ranks, length), with one row for each rank.

        The lists of all ranks must have the same length.
        """
        mine = torch.tensor(own, dtype=torch.int64)
        return np.stack([each.numpy() for each in self._gather(mine)])

    def gathered(self, own: Sequence[Payload], sizes: Sizes) -> Iterator[list[Payload]]:
        """Yield, in order of rank, the list of payloads of each rank. `own`: the payloads of this rank.

        `sizes`: the sizes of all payloads in bytes, of shape (ranks, payloads). In the messages each payload starts at a
        multiple of 4 bytes.
        """
        if not own:
            return
        stops = np.cumsum(_padded(sizes), axis=1)
        mine = torch.zeros(int(stops[:, -1].max()), dtype=torch.uint8)
        for payload, stop in zip(own, stops[self.rank], strict=True):
            start = int(stop) - int(_padded(payload.nbytes))
            mine[start : start + payload.nbytes] = torch.from_numpy(np.array(payload.data))
        for data, ends, lengths in zip(self._gather(mine), stops, sizes, strict=True):
            array = data.numpy()
            yield [Payload.from_bytes(array[a : a + n]) for a, n in zip(ends - _padded(lengths), lengths, strict=True)]

    def merged(self, payload: Payload) -> Payload:
        """Return the sketch of the sum of all ranks' arrays. `payload`: the sketch of this rank's array.

        All ranks must have made their sketches with the same key.
        """
        data = payload.data.copy()
        dist.all_reduce(torch.from_numpy(cells_of(data, len(payload.shape))), group=self._group)
        return Payload(data)

    def at_first(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks on rank 0, and an empty list on other ranks. All tensors have the shape of `mine`."""
        found = [torch.empty_like(mine) for _ in range(self.ranks if self.rank == 0 else 0)]
        dist.gather(mine, found or None, dst=dist.get_global_rank(self._group, 0), group=self._group)
        return found

    def _gather(self, mine: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, which all have the shape of `mine`."""
        found = [torch.empty_like(mine) for _ in range(self.ranks)]
        dist.all_gather(found, mine, group=self._group)
        return found


def _padded(nbytes: Any) -> Any:
    """Return sizes of payloads in bytes, rounded up to multiples of 4, since payloads are padded with zeros."""
    return -(-nbytes // _ALIGNED) * _ALIGNED
