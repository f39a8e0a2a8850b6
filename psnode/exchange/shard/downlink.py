"""Sending the weights down, coded or dense."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from psnode.codecs import Codec, Payload, get_codec
from psnode.codecs.arrays import Bytes, Floats
from psnode.codecs.rng import Key
from psnode.codecs.sinks import Added
from psnode.codecs.sources import Difference
from psnode.errors import CheckpointError
from psnode.exchange.outgoing import OutgoingFrames
from psnode.plan.groups import Group, Segment
from psnode.plan.part import PlanPart
from psnode.protocol import wire
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Kind
from psnode.records import state_names

_IDENTITY = get_codec("identity")
_PURPOSE = "downlink"


class Mover(Protocol):
    """The arithmetic of the downlink. Called in lanes, for a group by one thread at a time."""

    def move(self, segment: Segment, codec: Codec, key: Key, out: Bytes) -> Payload:
        """Code the segment's x - y with `codec`, into `out`, and move y by the decoded values."""

    def whole(self, group: Group) -> Floats:
        """The group's y, on the host, to look at."""


class HostMover:
    """x and y in the host's memory, flat; `largest`: the size of the largest segment."""

    def __init__(self, x: Floats, y: Floats, largest: int) -> None:
        self._x, self._y, self._largest = x, y, largest
        self._scratch: list[Floats] = []  # room for a change, one for every thread that has needed it at a time

    def move(self, segment: Segment, codec: Codec, key: Key, out: Bytes) -> Payload:
        scratch = self._scratch.pop() if self._scratch else np.empty(self._largest, np.float32)
        x, y = (vector[segment.start : segment.stop].reshape(segment.shape) for vector in (self._x, self._y))
        payload = moved(codec, x, y, key, out, scratch)
        self._scratch.append(scratch)
        return payload

    def whole(self, group: Group) -> Floats:
        return self._y[group.start : group.stop]


class Downlink:
    """Keeps y, the weights of `part` that every worker holds, and moves it towards x.

    Dense: y is x, and a group's frame replaces it. Coded: the frame carries D = E(x - y) segment by segment, E in the codec's
    contractive form, and y += decode(D) here and on every worker, bit for bit alike. The part that D misses is in the
    next x - y: y needs no error feedback of its own. `mover` may be replaced by one that has x and y elsewhere; `replica` then
    is y as it began. `heirs`: by group the ranks to which this one sends it; the `recipients` are those of them that get new
    versions, at first all.

    The error of a codec is sent in later steps, so y lags x. With a `lead` y moves towards x + lead (x - x before the
    update), the look-ahead of Nesterov's method: docs/results/2026-11-26-front.md. `hold` keeps x before its update.
    """

    def __init__(
        self,
        codecs: Sequence[Codec] | None,
        weights: Floats,
        part: PlanPart,
        link: FrameChannel,
        heirs: Mapping[int, Sequence[int]],
        *,
        seed: int,
        lead: float = 0.0,
    ) -> None:
        self.codecs = codecs
        self.lead = np.float32(lead if self.codecs is not None else 0)
        self._x = weights
        self.replica = weights if self.codecs is None else weights.copy()
        self.home = torch.from_numpy(self.replica)  # y's memory on the host
        self._heirs = heirs
        self.recipients = {group: tuple(ranks) for group, ranks in heirs.items()}
        self._seed = seed
        self._frames = OutgoingFrames(link)
        self._places = state_names.places(part.own)
        self._aim = np.empty_like(weights) if self.lead else weights  # between hold and send: x before the update
        self.mover: Mover = HostMover(self._aim, self.replica, max((segment.size for segment in part.own.segments), default=0))

    def send_to(self, ranks: Iterable[int]) -> None:
        """Send new versions to `ranks` alone. While no group is being sent."""
        chosen = frozenset(ranks)
        self.recipients = {group: tuple(rank for rank in heirs if rank in chosen) for group, heirs in self._heirs.items()}

    @property
    def differs(self) -> bool:
        """True if y is apart from x and has to be saved with it."""
        return self.replica is not self._x

    def state(self) -> dict[str, torch.Tensor]:
        """y by tensor, for a checkpoint: views, named as psnode.records.state_names says; empty where y is x."""
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

    def hold(self, group: Group) -> None:
        """The group's part of x is about to be updated, for the next `send`."""
        if self.lead:
            self._aim[group.start : group.stop] = self._x[group.start : group.stop]

    def send(self, group: Group, version: int) -> int:
        """Send the group's part of `version` to its recipients; the bytes of all frames. One thread a group at a time."""
        if self.codecs is None:
            return self.send_dense(group, version)
        if self.lead:
            x, aim = self._x[group.start : group.stop], self._aim[group.start : group.stop]
            np.subtract(x, aim, out=aim)
            aim *= self.lead
            aim += x
        codecs = [self.codecs[segment.index] for segment in group.segments]
        room = [wire.padded(codec.max_nbytes(s.shape)) for codec, s in zip(codecs, group.segments, strict=True)]
        frame = self._frames.begin(group.index, len(codecs), sum(room))
        for segment, codec in zip(group.segments, codecs, strict=True):
            key = Key.derive(self._seed, _PURPOSE, 0, version, group.index, segment.index)
            frame.take(self.mover.move(segment, codec, key, frame.room).nbytes)
        return self._post(group, frame, Kind.DELTA, version)

    def send_dense(self, group: Group, version: int, ranks: Sequence[int] | None = None) -> int:
        """Send the group's y as it is: to `ranks` that have none or an old one, else to its recipients."""
        frame = self._frames.begin(group.index, 1, wire.padded(_IDENTITY.max_nbytes((group.size,))))
        payload = _IDENTITY.encode(self.mover.whole(group), Key.derive(0), out=frame.room)
        frame.take(payload.nbytes)
        return self._post(group, frame, Kind.WEIGHTS, version, ranks)

    def _post(self, group: Group, frame: wire.GroupFrame, kind: Kind, version: int, ranks: Sequence[int] | None = None) -> int:
        ranks = self.recipients[group.index] if ranks is None else ranks
        sealed = self._frames.send(group.index, frame, ranks, kind, version, version)
        return sealed.size * len(ranks)


def moved(codec: Codec, x: Floats, y: Floats, key: Key, out: Bytes | None = None, scratch: Floats | None = None) -> Payload:
    """Code x - y and move y by the decoded values."""
    return codec.encode(Difference(x, y, scratch), key, sink=Added(y), out=out)
