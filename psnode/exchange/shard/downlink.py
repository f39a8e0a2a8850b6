"""Sending the weights down, coded or dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from psnode.codecs import Codec, Payload, get_codec
from psnode.codecs.arrays import Bytes, Floats
from psnode.codecs.rng import Key
from psnode.codecs.sinks import Added
from psnode.codecs.sources import Difference
from psnode.errors import CheckpointError
from psnode.exchange.outgoing import OutgoingFrames
from psnode.plan.groups import Group, Plan, downlink_codecs
from psnode.protocol import wire
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Kind
from psnode.records import layout

_IDENTITY = get_codec("identity")
_PURPOSE = "downlink"


class Downlink:
    """Keeps y, the weights that every worker holds, and moves it towards x.

    Dense: y is x, and a group's frame replaces it. Coded: the frame carries D = E(x - y) segment by segment, E in the codec's
    contractive form, and y += decode(D) here and on every worker, bit for bit alike. The part that D misses is in the
    next x - y: y needs no error feedback of its own.
    """

    def __init__(self, spec: str, weights: Floats, plan: Plan, link: FrameChannel, workers: Sequence[int], *, seed: int) -> None:
        self._codecs = downlink_codecs(plan, spec)
        self._x = weights
        self.replica = weights if self._codecs is None else weights.copy()
        self.recipients = tuple(workers)  # may be replaced while no group is being sent
        self._seed = seed
        self._frames = OutgoingFrames(len(plan.groups), link)
        self._segments = plan.segments
        self._places = layout.places(plan)
        self._scratch: list[Floats] = []  # room for a change, one for every thread that has needed it at a time

    @property
    def differs(self) -> bool:
        """True if y is apart from x and has to be saved with it."""
        return self.replica is not self._x

    def state(self) -> dict[str, torch.Tensor]:
        """y by tensor, for a checkpoint: views, named as psnode.records.layout says; empty where y is x."""
        if not self.differs:
            return {}
        return {f"replica/{name}": torch.from_numpy(self.replica[where]) for name, where in self._places.items()}

    def memory(self, group: Group) -> torch.Tensor:
        """The part of y that `send` changes."""
        return torch.from_numpy(self.replica[group.start : group.stop])

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Inverse of `state`. CheckpointError if a tensor is missing or of another size."""
        for key, part in self.state().items():
            if key not in tensors or tensors[key].shape != part.shape:
                raise CheckpointError(f"the checkpoint's replica does not fit this network: {key} is missing or of another size")
            part.copy_(tensors[key])

    def send(self, group: Group, version: int) -> int:
        """Send the group's part of `version` to every worker; the bytes of all frames. One thread a group at a time."""
        if self._codecs is None:
            return self.send_dense(group, version)
        codecs = [self._codecs[segment.index] for segment in group.segments]
        room = [wire.padded(codec.max_nbytes(s.shape)) for codec, s in zip(codecs, group.segments, strict=True)]
        frame = self._frames.begin(group.index, len(codecs), sum(room))
        scratch = self._scratch.pop() if self._scratch else np.empty(max(segment.size for segment in self._segments), np.float32)
        for segment, codec in zip(group.segments, codecs, strict=True):
            x = self._x[segment.start : segment.stop].reshape(segment.shape)
            y = self.replica[segment.start : segment.stop].reshape(segment.shape)
            key = Key.derive(self._seed, _PURPOSE, 0, version, group.index, segment.index)
            payload = _move(codec, x, y, key, frame.room, scratch)
            frame.take(payload.nbytes)
        self._scratch.append(scratch)
        return self._post(group, frame, Kind.DELTA, version)

    def send_dense(self, group: Group, version: int, ranks: Sequence[int] | None = None) -> int:
        """Send the group's y as it is: to `ranks` that have none or an old one, else to everybody."""
        frame = self._frames.begin(group.index, 1, wire.padded(_IDENTITY.max_nbytes((group.size,))))
        payload = _IDENTITY.encode(self.replica[group.start : group.stop], Key.derive(0), out=frame.room)
        frame.take(payload.nbytes)
        return self._post(group, frame, Kind.WEIGHTS, version, ranks)

    def _post(self, group: Group, frame: wire.GroupFrame, kind: Kind, version: int, ranks: Sequence[int] | None = None) -> int:
        ranks = self.recipients if ranks is None else ranks
        sealed = self._frames.send(group.index, frame, ranks, kind, version, version)
        return sealed.size * len(ranks)


def _move(codec: Codec, x: Floats, y: Floats, key: Key, out: Bytes | None = None, scratch: Floats | None = None) -> Payload:
    """Code x - y and move y by the decoded values."""
    return codec.encode(Difference(x, y, scratch), key, sink=Added(y), out=out)
