"""Feedback rules on a device: the same operations as on the host, in the same order, each rounded separately.

Products and sums are separate calls, since the device could otherwise fuse a product and a sum into one operation that rounds
only once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from psnode.codecs.device.tree_sums import square_sum
from psnode.feedback import Context, ErrorFeedback, Feedback, NoFeedback
from psnode.feedback.momentum import LocalMomentum, MomentumCorrection
from psnode.feedback.momentum_average import MomentumAverage

Pieces: TypeAlias = Sequence[tuple[int, torch.Tensor]]  # flat parts of a gradient, each with its place in the segment
Memories: TypeAlias = dict[str, torch.Tensor]
_Gather: TypeAlias = Callable[[Any, torch.Tensor, Memories, Pieces, Context], None]


class DeviceRule(NamedTuple):
    """Device form of a feedback rule: `gather` turns a gradient into the values to code.

    `coded`: the name of the memory in which these values are; None: they are in a buffer that is not a memory. `keeps`: True
    if this memory keeps the coding error.
    """

    coded: str | None
    keeps: bool
    gather: _Gather


def rule_of(rule: Feedback) -> DeviceRule | None:
    """Return the device form of `rule`, or None if only the host can follow the rule, for example a user's own rule."""
    return _RULES.get(type(rule))


def _covering(pieces: Pieces, size: int) -> Iterator[tuple[slice, torch.Tensor | float]]:
    """Yield slices that cover a segment of `size` values, each with the piece that fills it, or with 0.0 if no piece does."""
    end = 0
    for place, piece in pieces:
        if end < place:
            yield slice(end, place), 0.0
        end = place + piece.numel()
        yield slice(place, end), piece
    if end < size:
        yield slice(end, size), 0.0


def _none(rule: NoFeedback, values: torch.Tensor, memories: Memories, pieces: Pieces, context: Context) -> None:
    for place, piece in _covering(pieces, values.numel()):
        values[place].fill_(piece) if isinstance(piece, float) else values[place].copy_(piece)


def _error(rule: ErrorFeedback, values: torch.Tensor, memories: Memories, pieces: Pieces, context: Context) -> None:
    if (factor := rule.factor(context)) != 1:
        values.mul_(float(factor))
    for place, piece in pieces:
        values[place : place + piece.numel()].add_(piece)


def _average(rule: MomentumAverage, values: torch.Tensor, memories: Memories, pieces: Pieces, context: Context) -> None:
    beta = np.float32(rule.beta)
    values.mul_(float(beta))
    for place, piece in _covering(pieces, values.numel()):
        values[place].add_(piece * float(np.float32(1) - beta))


def _momentum(rule: LocalMomentum, values: torch.Tensor, memories: Memories, pieces: Pieces, context: Context) -> None:
    values.zero_()
    _correction(rule, values, memories, pieces, context)


def _correction(
    rule: MomentumCorrection | LocalMomentum, values: torch.Tensor, memories: Memories, pieces: Pieces, context: Context
) -> None:
    factor = float(np.float32(rule.momentum))
    if rule.clip:
        pieces = [(0, _clipped(rule, values, pieces, context.workers))]
    for place, piece in _covering(pieces, values.numel()):
        u, v = memories["momentum"][place], values[place]
        if rule.nesterov:
            u.add_(piece).mul_(factor)
            v.add_(u + piece)
        else:
            u.mul_(factor).add_(piece)
            v.add_(u)


def _clipped(rule: MomentumCorrection | LocalMomentum, values: torch.Tensor, pieces: Pieces, workers: int) -> torch.Tensor:
    """Return the gradient of the whole segment in a new tensor, scaled down to the norm that `rule` permits.

    The call does not wait for the device.
    """
    gradient = torch.zeros_like(values)
    for place, piece in pieces:
        gradient[place : place + piece.numel()].copy_(piece)
    norm, limit = square_sum(gradient).sqrt_(), rule.clip / math.sqrt(workers)
    scale = torch.where(norm > limit, torch.full_like(norm, limit) / norm, 1.0)  # torch would turn number / tensor into a product
    return gradient.mul_(scale.float())


_RULES: dict[type[Feedback], DeviceRule] = {
    NoFeedback: DeviceRule(None, False, _none),
    ErrorFeedback: DeviceRule("residual", True, _error),
    MomentumAverage: DeviceRule("average", False, _average),
    LocalMomentum: DeviceRule("sent", False, _momentum),
    MomentumCorrection: DeviceRule("velocity", True, _correction),
}
