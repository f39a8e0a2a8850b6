"""Communication of PyTorch's DistributedDataParallel by the hooks that psnode is compared with.

none                          no DDP: each process trains on its own shard; the floor of any step time
fp32:bucket=25                uncompressed gradients, in buckets of the given number of MB
fp16:bucket=25, bf16:...      halved by torch's hook
powersgd:rank=2,start=2,bucket=1000
                              PowerSGD with error feedback and warm start from iteration `start` on. More than one
                              bucket crashes some versions of torch over gloo, so the default makes one bucket
psnode:CODEC                  psnode's hook (psnode.ddp) with its default settings, in buckets of 25 MB
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from psnode.codecs import get_codec
from psnode.config.declaration import nearest
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel

KINDS: dict[str, dict[str, int]] = {
    "none": {},
    "fp32": {"bucket": 25},
    "fp16": {"bucket": 25},
    "bf16": {"bucket": 25},
    "powersgd": {"rank": 2, "start": 2, "bucket": 1000},
    "psnode": {"bucket": 25},
}


class Communication(NamedTuple):
    """A kind of KINDS with its parameters, all whole numbers. `codec`: the spec of psnode's hook."""

    kind: str
    parameters: dict[str, int]
    codec: str = ""

    @classmethod
    def parse(cls, spec: str) -> Communication:
        """Parse KIND[:name=value,...]. Raises ConfigurationError for an unknown kind or parameter."""
        kind, _, rest = spec.partition(":")
        if kind not in KINDS:
            raise ConfigurationError(f"DDP's communication must be one of {', '.join(KINDS)}, not {kind!r}{nearest(kind, KINDS)}")
        parameters = dict(KINDS[kind])
        if kind == "psnode":
            get_codec(rest)
            return cls(kind, parameters, rest)
        for item in rest.split(",") if rest else ():
            name, _, value = item.partition("=")
            if name not in parameters or not value.isdecimal() or int(value) < 1:
                known = ", ".join(f"{key}=1 or more" for key in parameters) or "no parameters"
                raise ConfigurationError(f"DDP's {kind} takes {known}, not {item!r}")
            parameters[name] = int(value)
        return cls(kind, parameters)

    def __str__(self) -> str:
        if self.codec:
            return f"{self.kind}:{self.codec}"
        return f"{self.kind}:{','.join(f'{key}={value}' for key, value in self.parameters.items())}".removesuffix(":")


def wrap(model: torch.nn.Module, communication: Communication) -> torch.nn.Module:
    """Return `model` wrapped so that its gradients are averaged by `communication`."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    kind, parameters, codec = communication
    if kind == "none":
        return model
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # the older name
    options: dict[str, Any] = {"bucket_cap_mb": parameters["bucket"], "gradient_as_bucket_view": True, buffers: False}
    found: DistributedDataParallel = DistributedDataParallel(model, **options)
    if kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=parameters["rank"], start_powerSGD_iter=parameters["start"]
        )
        found.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif kind == "psnode":
        from psnode.ddp import comm_hook

        found.register_comm_hook(*comm_hook(codec, model=model))
    elif kind != "fp32":
        found.register_comm_hook(None, default_hooks.fp16_compress_hook if kind == "fp16" else default_hooks.bf16_compress_hook)
    return found
