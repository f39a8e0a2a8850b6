"""A segment of a worker's gradient, coded on a device where its residual lies between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Floats, Words
from psnode.codecs.kernels.finite import raise_nonfinite
from psnode.codecs.rng import Key
from psnode.errors import NonFinitePartError
from psnode.exchange.device.coder import DeviceCoder
from psnode.feedback import Context, ErrorFeedback, Feedback, NoFeedback

if TYPE_CHECKING:
    from psnode.exchange.device.coder import CodecKernels

Pieces = Sequence[tuple[int, torch.Tensor]]  # flat parts of a gradient on the device, each with its place in the segment


def follows(rule: Feedback) -> bool:
    """True if a segment under this rule can be coded on a device: without feedback, or by error feedback."""
    return type(rule) in (NoFeedback, ErrorFeedback)


class DeviceSegment:
    """The values of a segment of `shape` on a device, and their coder.

    Under error feedback they are the residual; `home` is its place on the host. Whoever reads or writes that calls `settle`
    before: the newest residual is brought there, and taken from there by the next push.
    """

    def __init__(
        self,
        codec: Codec,
        kernels: CodecKernels,
        device: torch.device,
        rule: Feedback,
        shape: tuple[int, ...],
        home: Floats | None,
    ) -> None:
        self._codec, self._kernels, self._device = codec, kernels, device
        self._rule, self._shape, self._home = rule, shape, home
        self._is_home = True
        self._coder: DeviceCoder | None = None

    def settle(self) -> None:
        """Have the residual on the host."""
        if self._home is not None and not self._is_home:
            self._home[:] = self._values[: self._home.size].cpu().numpy()
            self._is_home = True

    def check(self, pieces: Pieces) -> None:
        """Raise NonFinitePartError for the first coordinate that is not finite."""
        finite = [torch.isfinite(piece).all() for _, piece in pieces]
        if finite and not bool(torch.stack(finite).all()):
            for place, piece in pieces:
                found = piece.cpu().numpy()
                if not np.isfinite(found).all():
                    raise_nonfinite(found, place, NonFinitePartError)

    def push(self, pieces: Pieces, key: Key, out: Bytes, context: Context) -> Payload:
        """Code a finite gradient, as the feedback rule has it; only the payload's bytes come to the host.

        NonFiniteGradientError if the sum with the residual is not finite.
        """
        return self._codec.assembled(self._shape, key, lambda words, body: self._code(pieces, words, body, context), out)

    def _code(self, pieces: Pieces, words: Words, body: Bytes, context: Context) -> int:
        from psnode.codecs.rows.codec import preamble

        coder = self._begin()
        values, size = self._values, int(np.prod(self._shape))
        if isinstance(self._rule, ErrorFeedback) and self._home is not None:
            if self._is_home:
                values[:size].copy_(torch.tensor(self._home))
                self._is_home = False
            if (factor := self._rule.factor(context)) != 1:
                values.mul_(float(factor))
        else:
            values.zero_()
        for place, piece in pieces:
            target = values[place : place + piece.numel()]
            target.copy_(piece) if self._home is None else target.add_(piece)
        coder.encode(values, words, None if self._home is None else values)
        head = preamble(self._codec)
        body[: len(head)] = np.frombuffer(head, np.uint8)
        used = len(head) + coder.take(body[len(head) :])
        if not coder.is_finite:
            raise_nonfinite(values[:size].cpu().numpy())
        values[size:].zero_()
        return used

    def _begin(self) -> DeviceCoder:
        """The coder; memory is taken at the first push."""
        if self._coder is None:
            self._coder = DeviceCoder(*self._kernels, int(np.prod(self._shape)), self._device)
            self._values = torch.zeros(self._coder.padded, dtype=torch.float32, device=self._device)
        return self._coder
