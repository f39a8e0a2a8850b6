"""Gradient codecs as a communication hook of PyTorch's DistributedDataParallel (DDP).

    model = DistributedDataParallel(network)
    model.register_comm_hook(*psnode.ddp.comm_hook("polar:rate=2"))

Every rank encodes its gradients of a bucket, and an all-gather sends the payloads to all ranks. Every rank decodes the payloads
and adds them in the order of ranks, so that replicas stay bit-identical. Payloads of sketches that may be added undecoded
(countmean) are instead summed by an all-reduce. The hook replaces only DDP's own all-reduce; model, loop, optimizer and
samplers do not change. For Lightning, `psnode.ddp.lightning` offers the hook as a callback. `RunRecords` records a DDP training
for `psnode report`.
"""

from psnode.errors import lacking

try:
    from psnode.ddp.hook import HookState, comm_hook
    from psnode.ddp.ranks import AllRanks
    from psnode.ddp.run_records import RunRecords
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(lacking(error) or str(error), name=error.name) from None

__all__ = ["AllRanks", "HookState", "RunRecords", "comm_hook"]
