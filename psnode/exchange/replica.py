"""A worker's copy y of the published weights, which versions change and hashes are of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import xxhash

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Floats
from psnode.codecs.device.checks import Verdict
from psnode.codecs.device.protocols import Change
from psnode.exchange.device.placing import changes_on
from psnode.plan.groups import Plan, Segment


def _is_host(device: torch.device) -> bool:
    return device.type == "cpu"


class Replica:
    """y, flat in the order of the plan, in the memory of `theta`, the vector that the model computes with.

    On a device y is also on the host, and `publish` copies it to theta. `weights` is y on the host, float32. Of segments that
    are changed on the device it only holds weights that came whole.
    """

    def __init__(self, theta: torch.Tensor) -> None:
        self._theta, self._device = theta, theta.device
        self._on_host = _is_host(theta.device)
        self._host = theta if self._on_host else torch.empty(theta.numel(), pin_memory=theta.is_cuda).copy_(theta)
        self.weights: Floats = self._host.numpy()
        self._changed_there: dict[int, Change] = {}

    def change_on_device(self, plan: Plan, codecs: Sequence[Codec]) -> list[Verdict]:
        """Have changes decoded where the model looks, from now on, as far as that gives the host's weights; the verdicts.

        `codecs`: of the segments' changes. ConfigurationError if CuPy is absent.
        """
        self._changed_there, verdicts = changes_on(plan, codecs, self._theta)
        self._stream = torch.cuda.current_stream(self._device)
        return verdicts

    def is_changed_there(self, segment: Segment) -> bool:
        """True if changes of the segment are decoded where the model looks, and not on the host."""
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
        """Have a change that was given to a stream of the model's own be over before other streams use these weights."""
        if (stream := torch.cuda.current_stream(self._device)) != self._stream:
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record(stream)
            done.synchronize()

    def publish(self, start: int, stop: int) -> None:
        """Make a change of `weights` in a range visible to the model."""
        if not self._on_host:  # not in the background: the next version may be written into `weights` at once
            self._theta[start:stop].copy_(self._host[start:stop])

    def digest(self) -> int:
        """xxh3_64 of the weights."""
        weights = self.weights if self._on_host else self._theta.cpu().numpy()
        return xxhash.xxh3_64_intdigest(weights.data)

    def release(self) -> None:
        """Let go of the vector: no version is to come."""
        self._theta = self._host = torch.empty(0)
        self.weights = self._host.numpy()
