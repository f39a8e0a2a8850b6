"""A worker's copy y of the published weights. Every version changes y, and digests of the weights are computed from y."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import xxhash

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Floats
from psnode.codecs.device.checks import Verdict
from psnode.codecs.device.protocols import Change
from psnode.exchange.device.placing import changes_on
from psnode.plans.groups import Plan, Segment


def _is_host(device: torch.device) -> bool:
    return device.type == "cpu"


class Replica:
    """Copy y of the published weights, flat in plan order, in the memory of the model's own vector `theta`.

    If theta is on a device, y also exists on the host, and `publish` copies it to theta. `weights`: y on the host, float32.
    For segments that are changed on the device, only theta has the newest values; `weights` keeps the values that last came
    whole.
    """

    def __init__(self, theta: torch.Tensor) -> None:
        self._theta, self._device = theta, theta.device
        self._on_host = _is_host(theta.device)
        self._host = theta if self._on_host else torch.empty(theta.numel(), pin_memory=theta.is_cuda).copy_(theta)
        self.weights: Floats = self._host.numpy()
        self._changed_there: dict[int, Change] = {}

    def change_on_device(self, plan: Plan, codecs: Sequence[Codec]) -> list[Verdict]:
        """From now on, decode changes on the model's device where this gives the same weights as on the host.

        `codecs`: the codec of each segment's changes. Returns a verdict on each codec. Raises ConfigurationError if CuPy is
        absent.
        """
        self._changed_there, verdicts = changes_on(plan, codecs, self._theta)
        self._stream = torch.cuda.current_stream(self._device)
        return verdicts

    def is_changed_there(self, segment: Segment) -> bool:
        """Return True if changes of the segment are decoded on the model's device, and not on the host."""
        return segment.index in self._changed_there

    def change(self, segment: Segment, codec: Codec, payload: Payload) -> None:
        """Add the decoded `payload` to the segment's weights. Raises PayloadError."""
        if (change := self._changed_there.get(segment.index)) is not None:
            change.add(payload)
            self._order()
        else:
            codec.decode_add(payload, self.weights[segment.start : segment.stop])
            self.publish(segment.start, segment.stop)

    def _order(self) -> None:
        """Wait for a change that is queued in another CUDA stream than the usual one, before other streams use these weights.

        A model may use a CUDA stream of its own during its forward pass.
        """
        if (stream := torch.cuda.current_stream(self._device)) != self._stream:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(stream)
            done.synchronize()

    def publish(self, start: int, stop: int) -> None:
        """Make a change of `weights` in the coordinates [start, stop) visible to the model."""
        if not self._on_host:  # not copied in the background: meanwhile the next version could change `weights`
            self._theta[start:stop].copy_(self._host[start:stop])

    def digest(self) -> int:
        """Return xxh3_64 of the weights."""
        weights = self.weights if self._on_host else self._theta.cpu().numpy()
        return xxhash.xxh3_64_intdigest(weights.data)

    def release(self) -> None:
        """Release the vector, since no further version will come."""
        self._theta = self._host = torch.empty(0)
        self.weights = self._host.numpy()
