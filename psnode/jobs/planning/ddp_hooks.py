"""PyTorch's DistributedDataParallel (DDP), with which psnode is compared: its communication hooks, payloads and optimizers.

none                          no DDP: each process trains only on its own part of the data; a lower bound of every step time
fp32:bucket=25                uncompressed gradients, in buckets of the given number of MB. 25 stands for torch's default, with
                              which the first bucket has 1 MB, so that communication begins early
fp16:bucket=25, bf16:...      halved by torch's hook
powersgd:rank=2,start=2,bucket=1000
                              PowerSGD with error feedback and warm start from iteration `start` on. More than one
                              bucket crashes some versions of torch over gloo, so the default bucket is very large
psnode:CODEC                  psnode's hook (psnode.ddp) with its default settings, in torch's default buckets
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from psnode.codecs import get_codec
from psnode.config import Config
from psnode.config.declaration import nearest
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel

_USUAL_BUCKET = 25  # MB: torch's default
_LEAST_GAIN = 2  # PowerSGD factorizes a matrix only if that saves more than this factor: torch's min_compression_rate
KINDS: dict[str, dict[str, int]] = {
    "none": {},
    "fp32": {"bucket": _USUAL_BUCKET},
    "fp16": {"bucket": _USUAL_BUCKET},
    "bf16": {"bucket": _USUAL_BUCKET},
    "powersgd": {"rank": 2, "start": 2, "bucket": 1000},
    "psnode": {"bucket": _USUAL_BUCKET},
}


class Communication(NamedTuple):
    """A way to average gradients under DDP: a `kind`, one of KINDS, with its parameters, which are whole numbers.

    `codec`: the spec of the codec if the kind is psnode's hook, otherwise empty.
    """

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
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # its older name
    options: dict[str, Any] = {"gradient_as_bucket_view": True, buffers: False}
    if parameters["bucket"] != _USUAL_BUCKET:  # with a stated size, torch's first bucket is as large as the others
        options["bucket_cap_mb"] = parameters["bucket"]
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


def payload_bytes(communication: Communication, shapes: Sequence[Sequence[int]], step: int) -> int:
    """Return the bytes that a rank contributes to the all-reduces of step number `step`, counted from 1.

    `shapes`: the shapes of the gradients. PowerSGD sends whole gradients before its iteration `start`, which is counted from
    0.
    """
    kind, parameters, _ = communication
    if kind == "powersgd" and step > parameters["start"]:
        return 4 * sum(sum(powersgd_values(shape, parameters["rank"])) for shape in shapes)
    return (2 if kind in ("fp16", "bf16") else 4) * sum(map(math.prod, shapes))


def powersgd_values(shape: Sequence[int], rank: int) -> tuple[int, int]:
    """Return the numbers of float32 values that PowerSGD adds up for one gradient in its first and in its second all-reduce.

    The values are the two factors of an n x m matrix, with n x r and m x r values for rank r (Vogels, Karimireddy and Jaggi,
    NeurIPS 2019). If factors would not save enough, the whole gradient is added up first, and the second number is 0.
    """
    n, m = shape[0] if shape else 1, math.prod(shape[1:])
    rank = min(n, m, rank)
    return (n * rank, m * rank) if _LEAST_GAIN * (n + m) * rank < n * m else (n * m, 0)


def optimizer_of(config: Config, parameters: Any, *, fused: bool = False) -> torch.optim.Optimizer:
    """Return torch's SGD, Adam or AdamW with the settings of `config`, which must include learning rate and momentum."""
    import torch

    assert config.lr is not None and config.momentum is not None
    if config.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, config.lr, config.momentum, nesterov=config.nesterov, weight_decay=config.weight_decay, fused=fused
        )
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    eps = 1e-8 if config.eps is None else config.eps  # torch's default
    return kind(parameters, config.lr, (config.momentum, config.beta2), eps, config.weight_decay, fused=fused)
