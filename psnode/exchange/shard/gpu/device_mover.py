"""Arithmetic of the downlink on a device: changes of weights are coded on the device that holds the weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Floats, Words
from psnode.codecs.device.protocols import Change, DeviceEncoder
from psnode.codecs.kernels.finite import raise_nonfinite
from psnode.codecs.payload import assemble
from psnode.codecs.rng import Key
from psnode.exchange.update.device_copies import told
from psnode.plans.groups import Group, Segment


class DeviceMover:
    """Mover for flat copies of x and y on a device. Its results equal the host's, bit for bit.

    `encoders`: encoders of the segments that the device codes, by the segment's number. For other segments the difference x - y
    is copied to the host, which codes it. `changes`: changes of the segments whose payloads the device decodes, by the
    segment's number. For other segments the host decodes the payload: either the decoded values are copied to the device, or y
    is copied to the host and back.
    """

    def __init__(
        self,
        x: torch.Tensor,
        y: torch.Tensor,
        encoders: Mapping[int, DeviceEncoder],
        changes: Mapping[int, Change],
    ) -> None:
        self._x, self._y, self._encoders, self._changes = x, y, encoders, changes

    @told
    def move(self, segment: Segment, codec: Codec, key: Key, out: Bytes) -> Payload:
        x, y = (vector[segment.start : segment.stop] for vector in (self._x, self._y))
        encoder, change = self._encoders.get(segment.index), self._changes.get(segment.index)
        if encoder is not None:
            payload = assemble(codec, segment.shape, key, lambda words, body: _code(encoder, x, y, words, body), out)
        else:
            difference = (x - y).cpu().numpy().reshape(segment.shape)
            payload = codec.encode(difference, key, out=out)
        if change is not None:
            change.add(payload)
        elif codec.lossless:
            y.add_(torch.from_numpy(codec.decode(payload).reshape(-1)).to(y.device))
        else:
            moved = y.cpu().numpy()  # on the host, -0 in y does not change where a sparse payload has no value
            codec.decode_add(payload, moved)
            y.copy_(torch.from_numpy(moved))
        return payload

    @told
    def whole(self, group: Group) -> Floats:
        found: Floats = self._y[group.start : group.stop].cpu().numpy()
        return found


def _code(encoder: DeviceEncoder, x: torch.Tensor, y: torch.Tensor, words: Words, body: Bytes) -> int:
    difference = torch.zeros(encoder.padded, device=x.device)
    torch.sub(x, y, out=difference[: x.numel()])
    encoder.encode(difference, words)
    used = encoder.take(body)
    if not encoder.is_finite:
        raise_nonfinite(difference[: x.numel()].cpu().numpy())
    return used
