"""The downlink, which sends weights to the workers, coded or dense."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Floats
from psnode.codecs.registry import known_codec
from psnode.codecs.rng import Key
from psnode.codecs.sinks import Added
from psnode.codecs.sources import Difference
from psnode.errors import CheckpointError
from psnode.exchange.flow_control import FlowControl
from psnode.exchange.outgoing import OutgoingFrames
from psnode.exchange.routes.route import Route, Sends
from psnode.plans.groups import Group, Segment
from psnode.plans.part import PlanPart
from psnode.protocol import wire
from psnode.protocol.channel import RELAY_TAG, FrameChannel
from psnode.protocol.wire import Kind
from psnode.records import state_names

_IDENTITY = known_codec("identity")
_PURPOSE = "downlink"


class Mover(Protocol):
    """Arithmetic of the downlink. Lanes call it, only one thread at a time for a group.

    It moves y, the weights that every worker has, towards x, the newest weights.
    """

    def move(self, segment: Segment, codec: Codec, key: Key, out: Bytes) -> Payload:
        """Code the segment's x - y with `codec` into `out`, and add the decoded values to y. Return the payload."""

    def whole(self, group: Group) -> Floats:
        """Return the group's y on the host. The caller must not change it."""


class HostMover:
    """Mover for flat x and y in the host's memory. `largest`: number of coordinates of the largest segment."""

    def __init__(self, x: Floats, y: Floats, largest: int) -> None:
        self._x, self._y, self._largest = x, y, largest
        self._scratch: list[Floats] = []  # buffers for a change, as many as threads have run simultaneously

    def move(self, segment: Segment, codec: Codec, key: Key, out: Bytes) -> Payload:
        scratch = self._scratch.pop() if self._scratch else np.empty(self._largest, np.float32)
        x, y = (vector[segment.start : segment.stop].reshape(segment.shape) for vector in (self._x, self._y))
        payload = moved(codec, x, y, key, out, scratch)
        self._scratch.append(scratch)
        return payload

    def whole(self, group: Group) -> Floats:
        return self._y[group.start : group.stop]


class Downlink:
    """Downlink that keeps y, the weights of `part` that every worker holds, and moves y towards x, the newest weights.

    Dense: y is x, and a group's frame replaces the weights of a worker. Coded: the frame carries D = E(x - y) segment by
    segment, where E is the codec in its contractive form. Then y += decode(D) is computed here and on every worker, with the
    same bits. The error of D is a part of the next x - y, so y needs no error feedback of its own.

    `mover` may be replaced by a mover that holds x and y elsewhere; `replica` then keeps old values. `routes`: by group, the
    route that has this rank as its root. At first, new versions go to all readers. `flow_control` counts the bytes of all
    frames.

    The error of a codec is sent in later steps, so y lags x. With a `lead`, y moves towards x + lead (x - x'), where x' is x
    before the update. This is the look-ahead of Nesterov's method: docs/results/2026-11-26-front.md. `hold` keeps x'.
    """

    def __init__(
        self,
        codecs: Sequence[Codec] | None,
        weights: Floats,
        part: PlanPart,
        link: FrameChannel,
        routes: Mapping[int, Route],
        flow_control: FlowControl,
        *,
        seed: int,
        lead: float = 0.0,
    ) -> None:
        self.codecs = codecs
        self.lead = np.float32(lead if self.codecs is not None else 0)
        self._x = weights
        self.replica = weights if self.codecs is None else weights.copy()
        self.home = torch.from_numpy(self.replica)  # the buffer of y on the host
        self._routes = routes
        self._flow_control = flow_control
        self.send_to(rank for route in routes.values() for rank in route.readers)
        self._seed = seed
        self._frames, self._rank = OutgoingFrames(link), link.rank
        self._places = state_names.places(part.own)
        self._aim = np.empty_like(weights) if self.lead else weights  # between hold and send: x before the update
        self.mover: Mover = HostMover(self._aim, self.replica, max((segment.size for segment in part.own.segments), default=0))

    def send_to(self, ranks: Iterable[int]) -> None:
        """From now on, send new versions only to `ranks`. Call this while no group is being sent."""
        chosen = frozenset(ranks)
        routes = self._routes
        self._recipients = {group: tuple(rank for rank in route.readers if rank in chosen) for group, route in routes.items()}
        found = {key: route.sends(chosen) for key, route in {id(route): route for route in routes.values()}.items()}
        self._sends = {group: found[id(route)] for group, route in routes.items()}

    @property
    def differs(self) -> bool:
        """True if y is a vector of its own. A checkpoint must then contain y in addition to x."""
        return self.replica is not self._x

    def state(self) -> dict[str, torch.Tensor]:
        """Return views of y by tensor for a checkpoint, named as in psnode.records.state_names; empty if y is x."""
        if not self.differs:
            return {}
        return {f"replica/{name}": torch.from_numpy(self.replica[where]) for name, where in self._places.items()}

    def memory(self, group: Group) -> torch.Tensor:
        """Return the part of y that changes when `send` is called for a group."""
        return torch.from_numpy(self.replica[group.start : group.stop])

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the result of `state`. Raises CheckpointError if a tensor is missing or has another size."""
        for key, part in self.state().items():
            if key not in tensors or tensors[key].shape != part.shape:
                raise CheckpointError(f"the checkpoint's replica does not fit this network: {key} is missing or of another size")
            part.copy_(tensors[key])

    def hold(self, group: Group) -> None:
        """Keep the group's part of x for a look-ahead in the next `send`. Call this before x is updated."""
        if self.lead:
            self._aim[group.start : group.stop] = self._x[group.start : group.stop]

    def send(self, group: Group, version: int) -> int:
        """Send the group's part of `version` to its recipients. Return the bytes of its frame, counted once for each recipient.

        Frames that one recipient forwards to another are counted too. Only one thread at a time may send a group.
        """
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
        """Send the group's y uncoded to `ranks`, or to its usual recipients if `ranks` is None. Return the bytes of all frames.

        `ranks` are ranks that have no y yet, or an old y. Those of them that read this group get the frame directly.
        """
        frame = self._frames.begin(group.index, 1, wire.padded(_IDENTITY.max_nbytes((group.size,))))
        payload = _IDENTITY.encode(self.mover.whole(group), Key.derive(0), out=frame.room)
        frame.take(payload.nbytes)
        return self._post(group, frame, Kind.WEIGHTS, version, ranks)

    def _post(self, group: Group, frame: wire.GroupFrame, kind: Kind, version: int, ranks: Sequence[int] | None = None) -> int:
        if ranks is None:
            reached, sends = self._recipients[group.index], self._sends[group.index]
        else:
            readers = self._routes[group.index].readers
            reached = tuple(rank for rank in ranks if rank in readers)
            sends = Sends((), reached)
        sealed = self._frames.send(group.index, frame, sends.used, kind, version, version)
        self._frames.send_also(group.index, sealed, sends.passed_on, RELAY_TAG)
        self._flow_control.sent(reached, sealed.size)
        return sealed.size * sum(rank != self._rank for rank in reached)


def moved(codec: Codec, x: Floats, y: Floats, key: Key, out: Bytes | None = None, scratch: Floats | None = None) -> Payload:
    """Code x - y with `codec`, and add the decoded values to y. Return the payload."""
    return codec.encode(Difference(x, y, scratch), key, sink=Added(y), out=out)
