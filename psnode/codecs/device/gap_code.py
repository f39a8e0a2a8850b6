"""The code of gaps between indices, psnode.codecs.selection.gaps, computed on the device with operations on whole arrays.

The code of every gap consists of a few bits, whose positions in the stream no other code uses. Each code is added to the words
that contain its positions. Since no two codes have a bit in common, the additions give the same words in any order.
"""

from __future__ import annotations

import torch

from psnode.codecs.selection import gaps
from psnode.codecs.selection.gap_kernels import GROUP, TURN
from psnode.codecs.selection.indices import DENSE, FITTED, head

_WORD = 32
_LOW = (1 << _WORD) - 1


def written(indices: torch.Tensor, size: int) -> tuple[bytes, torch.Tensor] | None:
    """Return the bytes that `psnode.codecs.selection.indices.write` would write.

    The first few bytes are on the host, the others (uint8) on the device. `indices`: int32, ascending, below `size`. Return
    None if the set is empty, or holds more than one in eight of all indices and may therefore have another code.
    """
    count = indices.numel()
    if not count or DENSE * count > size:
        return None
    ends = indices.long() + 1
    skipped = torch.diff(ends, prepend=ends.new_zeros(1)) - 1
    groups = -(-count // GROUP)
    by_group = torch.zeros(groups * GROUP, dtype=torch.int64, device=indices.device)
    by_group[:count] = skipped
    spans = by_group.view(groups, GROUP).sum(1)
    members = torch.full_like(spans, GROUP)
    members[-1] = count - GROUP * (groups - 1)
    b, fitted = _choice(skipped, spans, members, size)
    bits = fitted.repeat_interleave(members)
    parameters = [_packed(fitted, 5 * torch.arange(groups, device=indices.device), 5 * groups)] if b is None else []
    low = _packed(skipped & ((1 << bits) - 1), torch.cumsum(bits, 0) - bits, int(bits.sum()))
    unary = torch.cumsum((skipped >> bits) + 1, 0) - 1
    ones = _packed(torch.ones_like(unary), unary, int(unary[-1]) + 1)
    return head(count, FITTED if b is None else b), torch.cat([*parameters, low, ones])


def _choice(skipped: torch.Tensor, spans: torch.Tensor, members: torch.Tensor, size: int) -> tuple[int | None, torch.Tensor]:
    """Return the number b of low bits in the shortest code with one common b, and the b of every group.

    The first result is None if the code with one b per group is shorter.
    """
    count, groups = skipped.numel(), spans.numel()
    wide = gaps.widest(count, size)
    trials = list(range(max(0, wide - 1), wide + 2))
    lengths = [_bytes(count * b) + _bytes(count + int((skipped >> b).sum())) for b in trials]
    fixed = min(lengths)
    b = trials[lengths.index(fixed)]
    fitted = _fitted(spans, members)
    low = int((members * fitted).sum())
    expected = count + low + int((spans << (gaps.MAX_LOW_BITS - fitted)).sum()) / (1 << gaps.MAX_LOW_BITS)
    one = int(_fitted(spans.sum()[None], torch.tensor([count], device=spans.device)))
    expected_fixed = count * (1.0 + one) + int(spans.sum()) / (1 << one)
    if expected + gaps.PARAMETER_BITS * groups <= gaps.GAIN * expected_fixed:
        unary = count + int((skipped >> fitted.repeat_interleave(members)).sum())
        if _bytes(gaps.PARAMETER_BITS * groups) + _bytes(low) + _bytes(unary) < fixed:
            return None, fitted
    return b, torch.full_like(spans, b)


def _fitted(spans: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
    """Return the b of every group, given the sum (`spans`) and the number (`members`) of the gaps in each group."""
    edges = TURN * members.double()
    powers = (1 << torch.arange(gaps.MAX_LOW_BITS + 1, device=spans.device)).double()  # exact, while CUDA's pow may not be
    return (spans.double()[:, None] > edges[:, None] * powers).sum(1)


def _packed(codes: torch.Tensor, places: torch.Tensor, length: int) -> torch.Tensor:
    """Return a stream of `length` bits in which each code, of at most 28 bits, starts at its position in `places`."""
    words = torch.zeros(length // _WORD + 2, dtype=torch.int64, device=codes.device)
    shifted, at = codes << (places % _WORD), places // _WORD
    words.index_add_(0, at, shifted & _LOW)
    words.index_add_(0, at + 1, shifted >> _WORD)
    return words.view(torch.uint8).view(-1, 8)[:, :4].reshape(-1)[: _bytes(length)]


def _bytes(bits: int) -> int:
    return -(-bits // 8)
