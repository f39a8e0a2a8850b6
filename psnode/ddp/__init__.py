"""Codecs as a communication hook of PyTorch's DistributedDataParallel.

    model = DistributedDataParallel(network)
    model.register_comm_hook(*psnode.ddp.comm_hook("polar:rate=2"))

Gradients of a bucket are encoded on every rank, payloads are gathered by all, and every rank decodes and adds them in the order
of ranks, so that replicas stay bit-identical. Payloads of linear codecs are summed by an all-reduce instead. The hook replaces
DDP's own all-reduce: model, loop, optimizer and samplers stay as they are. `psnode.ddp.lightning` offers it as a callback.
"""

from psnode.ddp.hook import HookState, comm_hook
from psnode.ddp.ranks import AllRanks

__all__ = ["AllRanks", "HookState", "comm_hook"]
