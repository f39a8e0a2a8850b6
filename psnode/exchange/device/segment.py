"""A segment of a worker's gradient, coded on a device that also holds the segment's memories between steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Words
from psnode.codecs.device.protocols import DeviceCodec, DeviceEncoder
from psnode.codecs.kernels.finite import raise_nonfinite
from psnode.codecs.payload import assemble
from psnode.codecs.rng import Key
from psnode.errors import NonFinitePartError
from psnode.exchange.device.rules import Pieces, rule_of
from psnode.feedback import Context, Feedback, State


class DeviceSegment:
    """Values of a segment of `shape` on a device, with the memories that `rule` needs. `codecs`: device codecs, by spec.

    `homes`: the arrays of the memories on the host. A caller that reads or changes these arrays must first call `settle`,
    which copies the newest memories to them. The next push reads the arrays again.
    """

    def __init__(
        self, codecs: Mapping[str, DeviceCodec], device: torch.device, rule: Feedback, shape: tuple[int, ...], homes: State
    ) -> None:
        found = rule_of(rule)
        assert found is not None, rule
        self._codecs, self._device = codecs, device
        self._feedback, self._rule, self._shape, self._size = rule, found, shape, math.prod(shape)
        self._homes, self._memories = homes, dict[str, torch.Tensor]()
        self._is_home = True
        self._encoders: dict[str, DeviceEncoder] = {}
        self._pushed = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def settle(self) -> None:
        """Copy the newest memories from the device to their arrays on the host."""
        if not self._is_home:
            torch.cuda.current_stream(self._device).wait_event(self._pushed)
            for name, home in self._homes.items():
                home[:] = self._memories[name].cpu().numpy()
            self._is_home = True

    def check(self, pieces: Pieces) -> None:
        """Raise NonFinitePartError for the first coordinate in `pieces` that is not finite."""
        finite = [torch.isfinite(piece).all() for _, piece in pieces]
        if finite and not bool(torch.stack(finite).all()):
            for place, piece in pieces:
                found = piece.cpu().numpy()
                if not np.isfinite(found).all():
                    raise_nonfinite(found, place, NonFinitePartError)

    def push(self, pieces: Pieces, codec: Codec, key: Key, out: Bytes, context: Context) -> Payload:
        """Code a finite gradient with `codec` under the feedback rule. Only the payload's bytes are copied to the host.

        Raises NonFiniteGradientError if the sum of gradient and residual is not finite.
        """
        encoder = self._encoder(codec)
        payload = assemble(codec, self._shape, key, lambda words, body: self._code(encoder, pieces, words, body, context), out)
        if self._feedback.masks and not codec.lossless:
            self._forget(codec, payload)
        self._pushed.record()  # after the masking, since `settle` uses another stream and must wait for it
        return payload

    def _code(self, encoder: DeviceEncoder, pieces: Pieces, words: Words, body: Bytes, context: Context) -> int:
        values, size = self._values, self._size
        if self._is_home:
            for name, home in self._homes.items():
                self._memories[name].copy_(torch.tensor(home))
            self._is_home = not self._homes
        self._rule.gather(self._feedback, values[:size], self._memories, pieces, context)
        encoder.encode(values, words, values if self._rule.keeps else None)
        used = encoder.take(body)
        if not encoder.is_finite:
            raise_nonfinite(values[:size].cpu().numpy())
        values[size:].zero_()
        return used

    def _forget(self, codec: Codec, payload: Payload) -> None:
        """Set the momentum to 0 where `payload` has values (momentum factor masking)."""
        momentum = self._memories["momentum"]
        if codec.sparse:
            momentum[torch.from_numpy(codec.support(payload)).to(self._device)] = 0
        else:
            momentum.zero_()

    def _encoder(self, codec: Codec) -> DeviceEncoder:
        """Return the encoder of `codec`. A new encoder replaces the encoder of an earlier phase, which is released."""
        spec = repr(codec)
        if spec not in self._encoders:
            encoder = self._codecs[spec].encoder(self._shape)
            if not self._encoders:
                self._take_memory(encoder.padded)
            elif self._values.numel() < encoder.padded:
                self._grow(encoder.padded)
            self._encoders = {spec: encoder}
        return self._encoders[spec]

    def _take_memory(self, padded: int) -> None:
        """Allocate `padded` float32 for the values to code, and an array for each memory that lies outside these values."""
        self._values = torch.zeros(padded, dtype=torch.float32, device=self._device)
        for name, home in self._homes.items():
            coded = name == self._rule.coded
            self._memories[name] = self._values[: self._size] if coded else torch.zeros(home.size, device=self._device)

    def _grow(self, padded: int) -> None:
        """Move the values to an array of `padded` float32, since a codec needs more room than the codec of an earlier phase."""
        values = torch.zeros(padded, dtype=torch.float32, device=self._device)
        values[: self._size] = self._values[: self._size]
        self._values = values
        if self._rule.coded is not None:
            self._memories[self._rule.coded] = values[: self._size]
