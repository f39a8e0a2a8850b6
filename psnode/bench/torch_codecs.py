"""Codecs written with PyTorch's operators. Their speeds, measured in the same run on one thread, are those to beat."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from psnode.bench.yardsticks.rotation import Rotation
from psnode.bench.yardsticks.timing import rate

if TYPE_CHECKING:
    import torch


def _topk(x: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    indices = x.abs().topk(keep, sorted=False).indices
    return indices, x[indices]


def _qsgd(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    buckets = x.view(-1, 512)
    norms = buckets.norm(dim=1, keepdim=True)
    scaled = buckets.abs() * (15 / norms)
    low = scaled.floor()
    level = low + (torch.rand_like(scaled) < scaled - low)
    return norms, (level * buckets.sign()).to(torch.int8)


def _terngrad(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    scale = x.abs().max()
    keep = torch.rand_like(x) * scale < x.abs()
    return scale, (x.sign() * keep).to(torch.int8)


def _sign(x: torch.Tensor) -> torch.Tensor:
    import torch

    return x.sign().to(torch.int8)


OPERATORS: dict[str, Callable[[torch.Tensor], object]] = {
    "topk": lambda x: _topk(x, max(1, x.numel() // 100)),
    "topk:ratio=0.001": lambda x: _topk(x, max(1, x.numel() // 1000)),
    "topk:ratio=0.001,sampled=true": lambda x: _topk(x, max(1, x.numel() // 1000)),
    "topk:sampled=true": lambda x: _topk(x, max(1, x.numel() // 100)),
    "qsgd": _qsgd,
    "terngrad": _terngrad,
    "sign": _sign,
}


def measure(spec: str, copies: Rotation, seconds: float) -> dict[str, float] | None:
    """Return the GB/s at which PyTorch's operators do the work of the codec `spec` on `copies`, taken in turn.

    None if torch is missing, or if OPERATORS does not contain the codec.
    """
    if spec not in OPERATORS or find_spec("torch") is None:
        return None
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        size = copies.take().size // 512 * 512
        action = OPERATORS[spec]
        return rate(lambda: action(torch.from_numpy(copies.take()[:size])), 4 * size, seconds, least=3) if size else None
    finally:
        torch.set_num_threads(threads)
