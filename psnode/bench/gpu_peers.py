"""Codecs of other programs on a CUDA device: GRACE's compressors for torch, reimplemented operation by operation.

GRACE: Xu et al., "GRACE: A Compressed Communication Framework for Distributed Machine Learning", ICDCS 2021. Its payloads are
tensors: signs, trits and levels take one byte each, and indices take eight. One more codec, which is not GRACE's, packs eight
signs into a byte with CuPy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    Parts = tuple[torch.Tensor, ...]

_CLIP = 2.5  # clipping of terngrad, in standard deviations
_LEVELS = 64  # levels of qsgd
RATIO = 0.005  # ratio of topk


class Peer(NamedTuple):
    """A codec of another program.

    `encode` takes a flat float32 tensor. `decode` takes the payload and the number of values.
    """

    name: str
    encode: Callable[[torch.Tensor], Parts]
    decode: Callable[[Parts, int], torch.Tensor]


def peers() -> Iterator[Peer]:
    """Yield all codecs; the last packs signs with CuPy."""
    import cupy
    import torch
    from torch.utils.dlpack import from_dlpack

    def half(x: torch.Tensor) -> Parts:
        return (x.half(),)

    def whole(parts: Parts, size: int) -> torch.Tensor:
        return parts[0].float()

    yield Peer("fp16", half, whole)

    def signs(x: torch.Tensor) -> Parts:
        return ((x >= 0).to(torch.uint8),)

    def signed(parts: Parts, size: int) -> torch.Tensor:
        return parts[0].float() * 2 - 1

    yield Peer("signsgd", signs, signed)

    def trits(x: torch.Tensor) -> Parts:
        limit = _CLIP * ((x - x.mean()) ** 2).mean().sqrt().item()
        clipped = x.clamp(-limit, limit)
        magnitude = clipped.abs()
        largest = magnitude.max()
        drawn = torch.empty_like(x).uniform_(0, largest.item())
        kept = clipped.sign() * largest
        kept[drawn >= magnitude] = 0
        return kept.sign().to(torch.int8), largest.reshape(1)

    def scaled(parts: Parts, size: int) -> torch.Tensor:
        return parts[0].float() * parts[1]

    yield Peer("terngrad", trits, scaled)

    def levels(x: torch.Tensor) -> Parts:
        norm = x.norm().reshape(1)
        places = _LEVELS / norm * x.abs()
        below = places.floor()
        above = (torch.empty_like(x).uniform_() < places - below).float()
        return ((below + above) * x.sign()).to(torch.int16).to(torch.int8), norm

    def from_levels(parts: Parts, size: int) -> torch.Tensor:
        return parts[1] / _LEVELS * parts[0].float()

    yield Peer(f"qsgd, {_LEVELS} levels", levels, from_levels)

    def largest(x: torch.Tensor) -> Parts:
        _, indices = torch.topk(x.abs(), max(1, int(x.numel() * RATIO)), sorted=False)
        return x.gather(0, indices), indices

    def scattered(parts: Parts, size: int) -> torch.Tensor:
        return torch.zeros(size, device=parts[0].device).scatter_(0, parts[1], parts[0])

    yield Peer(f"topk, ratio {RATIO}", largest, scattered)

    def packed(x: torch.Tensor) -> Parts:
        return (from_dlpack(cupy.packbits(cupy.from_dlpack((x >= 0).to(torch.uint8)))),)

    def unpacked(parts: Parts, size: int) -> torch.Tensor:
        bits = from_dlpack(cupy.unpackbits(cupy.from_dlpack(parts[0])))
        return bits[:size].float() * 2 - 1

    yield Peer("signs, packed by CuPy", packed, unpacked)
