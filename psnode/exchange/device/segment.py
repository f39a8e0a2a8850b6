"""A segment of a worker's gradient, coded on a device where its memories lie between steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Words
from psnode.codecs.kernels.finite import raise_nonfinite
from psnode.codecs.rng import Key
from psnode.errors import NonFinitePartError
from psnode.exchange.device.coder import DeviceCoder
from psnode.exchange.device.rules import Pieces, rule_of
from psnode.feedback import Context, Feedback, State

if TYPE_CHECKING:
    from psnode.exchange.device.coder import CodecKernels


class DeviceSegment:
    """The values of a segment of `shape` on a device, its memories under `rule`, and their coder.

    `homes` are the memories' places on the host. Whoever reads or writes those calls `settle` before: the newest memories are
    brought there, and taken from there by the next push.
    """

    def __init__(
        self, codec: Codec, kernels: CodecKernels, device: torch.device, rule: Feedback, shape: tuple[int, ...], homes: State
    ) -> None:
        found = rule_of(rule)
        assert found is not None, rule
        self._codec, self._kernels, self._device = codec, kernels, device
        self._feedback, self._rule, self._shape, self._size = rule, found, shape, math.prod(shape)
        self._homes, self._memories = homes, dict[str, torch.Tensor]()
        self._is_home = True
        self._coder: DeviceCoder | None = None

    def settle(self) -> None:
        """Have the memories on the host."""
        if not self._is_home:
            for name, home in self._homes.items():
                home[:] = self._memories[name].cpu().numpy()
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
        payload = self._codec.assembled(self._shape, key, lambda words, body: self._code(pieces, words, body, context), out)
        if self._feedback.masks and not self._codec.lossless:
            self._forget(payload)
        return payload

    def _code(self, pieces: Pieces, words: Words, body: Bytes, context: Context) -> int:
        from psnode.codecs.rows.codec import preamble

        coder = self._begin()
        values, size = self._values, self._size
        if self._is_home:
            for name, home in self._homes.items():
                self._memories[name].copy_(torch.tensor(home))
            self._is_home = not self._homes
        self._rule.gather(self._feedback, values[:size], self._memories, pieces, context)
        coder.encode(values, words, values if self._rule.keeps else None)
        head = preamble(self._codec)
        body[: len(head)] = np.frombuffer(head, np.uint8)
        used = len(head) + coder.take(body[len(head) :])
        if not coder.is_finite:
            raise_nonfinite(values[:size].cpu().numpy())
        values[size:].zero_()
        return used

    def _forget(self, payload: Payload) -> None:
        """Momentum factor masking: no momentum where `payload` carries something."""
        momentum = self._memories["momentum"]
        if self._codec.sparse:
            momentum[torch.from_numpy(self._codec.support(payload)).to(self._device)] = 0
        else:
            momentum.zero_()

    def _begin(self) -> DeviceCoder:
        """The coder; memory is taken at the first push."""
        if self._coder is None:
            self._coder = DeviceCoder(*self._kernels, self._size, self._device)
            self._values = torch.zeros(self._coder.padded, dtype=torch.float32, device=self._device)
            for name, home in self._homes.items():
                coded = name == self._rule.coded
                self._memories[name] = self._values[: self._size] if coded else torch.zeros(home.size, device=self._device)
        return self._coder
