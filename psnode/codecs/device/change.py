"""Changes of weights on a device. The device adds the payloads to the weights, and decodes dense payloads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.contractive import Contractive
from psnode.codecs.device.row_coder import DeviceCoder
from psnode.codecs.device.row_functions import RowFunctions
from psnode.codecs.dithered import Dithered
from psnode.codecs.payload import body_of
from psnode.errors import PayloadError

if TYPE_CHECKING:
    from psnode.codecs.arrays import Bytes
    from psnode.codecs.device.row_coder import CodecKernels


class ChangeOfRows:
    """Addition of payloads of `codec`, which codes rows, to `weights`, a flat float32 tensor on a device.

    The result has the same bits as the result of `codec.decode_add`. Only the bytes of a payload, and padding of the last rows,
    are copied to the device. In two rare cases the host decodes the payload instead: if the factor of a contractive
    form exceeds 1, because the host checks that the values stay within float32's range, and if the length of the body is not
    the one for which the kernels are set up.
    """

    def __init__(self, codec: Codec, kernels: CodecKernels, weights: torch.Tensor) -> None:
        from psnode.codecs.rows.codec import preamble
        from psnode.codecs.rows.coder import Coder

        self._codec, self._weights, self._head = codec, weights, preamble(decoder(codec))
        self._coder = DeviceCoder(*kernels, weights.numel(), weights.device)
        self._varies = kernels[0].packed.varies
        self._nbytes = len(self._head) + kernels[0].nbytes(weights.numel())
        self._checked = Coder(kernels[0], RowFunctions(kernels[1], weights.device))

    def add(self, payload: Payload) -> None:
        """Add the decoded values to the weights. Raise PayloadError and leave the weights unchanged if the payload is invalid."""
        body = body_of(self._codec, payload, self._weights.numel())
        scale = np.float32(1)
        if isinstance(self._codec, Contractive):
            scale, body = self._codec.split(body)
        if abs(scale) > 1 or (body.size != self._nbytes and not self._varies):
            decoded = self._codec.decode(payload).reshape(-1)
            self._weights.add_(torch.from_numpy(decoded).to(self._weights.device))
            return
        self._coder.put(self._behind_parameters(body))
        self._coder.add_to(self._weights, float(scale))

    def _behind_parameters(self, body: Bytes) -> Bytes:
        """Return the part of the body that the kernels read, after checking the whole body. Raises PayloadError."""
        from psnode.codecs.rows.codec import Generated

        head = self._head
        if body[: len(head)].tobytes() != head:
            raise PayloadError(f"{self._codec!r}: a payload of other parameters")
        if isinstance(inner := decoder(self._codec), Generated):
            inner.check_fields(body)
        if isinstance(inner, Dithered):
            inner.check_scales(body, self._weights.numel())
        self._checked.check(body[len(head) :], self._weights.numel())
        return body[len(head) :]


class ChangeOfEntries:
    """Addition of payloads of `codec`, which is sparse, to `weights`, a flat float32 tensor on a device.

    The result has the same bits as the result of `codec.decode_add`. The host decodes the entries, which are few, and copies
    them to the device. The device adds them.
    """

    def __init__(self, codec: Codec, weights: torch.Tensor) -> None:
        self._codec, self._weights = codec, weights

    def add(self, payload: Payload) -> None:
        """Add the decoded values to the weights. Raise PayloadError and leave the weights unchanged if the payload is invalid."""
        body_of(self._codec, payload, self._weights.numel())
        entries = self._codec.entries(payload)
        assert entries is not None, self._codec
        device = self._weights.device
        there = torch.from_numpy(entries.indices.astype(np.int64)).to(device)
        self._weights[there] = self._weights[there] + torch.tensor(entries.values).to(device)


def decoder(codec: Codec) -> Codec:
    """Return the codec whose kernels decode payloads of `codec`: the wrapped codec of a contractive form, else `codec` itself."""
    return codec.codec if isinstance(codec, Contractive) else codec
