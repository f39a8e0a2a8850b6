"""The published weights as they arrive: applied group by group, as late as possible and as early as needed.

Between a worker's backward pass and its next one a new version of the weights comes down, in as many frames as there are
groups, and a ROUND frame that closes it. The next forward pass need not wait for all of that: a layer only needs its own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from psnode.codecs import Codec, Payload, get_codec
from psnode.errors import DeadlineExceededError, WireError
from psnode.exchange.replica import Replica
from psnode.plan.groups import Plan
from psnode.protocol import wire
from psnode.protocol.channel import FrameChannel, RemoteFailureError, StopRequest
from psnode.protocol.messages import Failure, Reshard
from psnode.protocol.wire import Flag, Frame, Kind
from psnode.records import checkpoint
from psnode.records.timeline import Tracer
from psnode.transport.clock import Clock

_IDENTITY = get_codec("identity")


class Receiver:
    """Puts versions of the weights in place, one after another. For the thread that trains.

    `downlink`: the codecs of the segments in DELTA frames; `patience`: how long the master may keep silent, in
    seconds; `returned(version, groups)` is told which groups of this worker's gradient a version did not use, and
    `clipped(version, factors)` which of them it used in part. `waited` is how long the waits for the version took in all.
    """

    def __init__(
        self,
        link: FrameChannel,
        plan: Plan,
        replica: Replica,
        downlink: Sequence[Codec] | None,
        tracer: Tracer,
        patience: float,
        returned: Callable[[int, Sequence[int]], None],
        clipped: Callable[[int, Mapping[int, np.float32]], None],
    ) -> None:
        self._link = link
        self._plan = plan
        self._replica = replica
        self._downlink = downlink
        self._tracer = tracer
        self._patience = patience
        self._returned = returned
        self._clipped = clipped
        self._early: deque[Frame] = deque()
        self.version = 0  # the newest of the weights that are there or coming
        self._flags: Flag | None = None
        self._spare = False  # this rank was none of those who take part
        self.missing: set[int] = set()  # groups whose weights are of an older version
        self.waited = 0.0
        self.deal: Reshard | None = None  # the newest that has come, until somebody takes it
        self.statistics: dict[str, torch.Tensor] = {}  # with it, for a rank that has none of its own
        self.applied: int | None = None  # gradients, by this version; None: its number tells
        self.checkpoints: list[int] = []  # of versions that were passed over, until somebody contributes to them

    def expect(self, version: int) -> None:
        """From here on `version` is to come: no weight may be used before it is required."""
        self.version = version
        self._flags = None
        self.missing = {group.index for group in self._plan.groups}
        self.waited = 0.0

    def hold(self, version: int) -> None:
        """The weights that are there are those of `version`, which is not closed yet."""
        self.expect(version)
        self.missing = set()

    def assume(self, version: int) -> None:
        """The weights that are there count as the whole of `version`, closed."""
        self.expect(version)
        self.missing, self._flags = set(), Flag.NONE

    def require(self, start: int, stop: int) -> None:
        """Return when coordinates [start, stop) are those of the version, applying whatever comes meanwhile."""
        if any(start < self._plan.groups[index].stop and self._plan.groups[index].start < stop for index in self.missing):
            wanted = {g.index for g in self._plan.groups if start < g.stop and g.start < stop}
            self._take_while(lambda: bool(wanted & self.missing))

    def complete(self) -> Flag:
        """Return when the whole version is in place and closed: the flags of the frame that closed it."""
        self._take_while(lambda: self._flags is None)
        assert self._flags is not None
        return self._flags

    def behind(self) -> bool:
        """True if a later version than the expected one has come as a whole, or will when the master hears of it."""
        try:
            while True:
                self._keep(self._link.next(0))
        except DeadlineExceededError:
            return any(
                frame.version > self.version and (frame.kind is Kind.VERSION_COMPLETE or Flag.HOLD in frame.flags)
                for frame in self._early
            )

    def _keep(self, event: object) -> None:
        if isinstance(event, StopRequest):
            self._link.send(0, Kind.STOP_REQUEST, event.reason.encode())
        elif isinstance(event, Frame) and event.kind is Kind.END:
            raise RemoteFailureError(0, Failure("the job has ended without this worker", 0))
        elif isinstance(event, Frame):
            if event.kind is not Kind.PING:
                self._early.append(event)
        else:
            raise WireError(f"rank {self._link.rank} did not expect {describe(event)}")

    def _take_while(self, unfinished: Callable[[], bool]) -> None:
        if not unfinished():
            return
        begin = time.perf_counter()
        with self._tracer.span("wait", version=self.version):
            while unfinished():
                self._take()
        self.waited += time.perf_counter() - begin

    def _take(self) -> None:
        version = self.version
        if not self._early:
            self._keep(self.listen())
        if not self._early:
            return
        event = self._early.popleft()
        if event.kind is Kind.ASK:
            self._answer(event)
            return
        if event.kind is Kind.EPOCH:
            self.applied = event.step
            return
        if event.kind is Kind.WEIGHTS and event.version > version:  # this worker was suspended, and is readmitted
            version = self.version = event.version
            self.missing = {group.index for group in self._plan.groups}
        elif self._spare and event.version == version - 1 and len(self.missing) == len(self._plan.groups):
            version = event.version  # nobody is left in its round, which this rank may take part in, or which is the last
            self.hold(version)
        if event.version != version:
            raise WireError(f"rank {self._link.rank} expected version {version} of the weights and got {describe(event)}")
        if event.kind is Kind.VERSION_COMPLETE and not self.missing:
            if unused := wire.unpack_groups(event.body, len(self._plan.groups), event.sender):
                self._returned(event.step, unused)
            self._flags = event.flags
            self._spare = Flag.SPARE in event.flags
            return
        if event.kind is Kind.CLIP:
            self._clipped(event.step, wire.unpack_factors(event.body, len(self._plan.groups), event.sender))
            return
        if event.kind is Kind.STATE:
            self.statistics = checkpoint.parse(bytes(event.body), "what the master knows of the buffers")
            return
        if event.kind is Kind.RESHARD:
            self.deal = Reshard.from_bytes(event.body, event.sender)
            return
        # whole weights may come once more of the same version, to a worker that is readmitted at once
        if event.group not in self.missing and (event.kind is not Kind.WEIGHTS or event.group >= len(self._plan.groups)):
            raise WireError(f"rank {self._link.rank} did not expect {describe(event)}")
        if event.kind not in (Kind.WEIGHTS, Kind.DELTA):
            raise WireError(f"rank {self._link.rank} did not expect {describe(event)}")
        self._apply(event)
        self.missing.discard(event.group)

    def _answer(self, question: Frame) -> None:
        """Everything before `question` is taken: so the master may send on. Or take note of a checkpoint to contribute to."""
        if Flag.CHECKPOINT in question.flags:
            self.checkpoints.append(question.step)
        else:
            self._link.send(0, Kind.ASK, step=question.step, version=question.version)

    def listen(self) -> object:
        """The next event. DeadlineExceededError if the master keeps silent for too long."""
        clock = Clock()
        end = clock.now() + self._patience
        while True:
            try:
                with clock.listening(end) as seconds:
                    return self._link.next(seconds)
            except DeadlineExceededError:
                if clock.now() >= end:
                    raise DeadlineExceededError(
                        f"rank {self._link.rank} heard nothing of the master for {self._patience:g} s, at version "
                        f"{self.version}: it is gone or stuck; raise --pause-deadline if it is only slow"
                    ) from None

    def _apply(self, frame: Frame) -> None:
        """Put a group's weights in place, or add their change."""
        group = self._plan.groups[frame.group]
        with self._tracer.span("apply", group=frame.group):
            weights = self._replica.weights
            if frame.kind is Kind.WEIGHTS:
                [data] = wire.split_group(frame.body, 1, frame.sender)
                _IDENTITY.decode(Payload.from_bytes(data), out=weights[group.start : group.stop])
            elif self._downlink is not None:
                parts = wire.split_group(frame.body, len(group.segments), frame.sender)
                for segment, data in zip(group.segments, parts, strict=True):
                    codec = self._downlink[segment.index]
                    codec.decode_add(Payload.from_bytes(data), weights[segment.start : segment.stop])
            frame.release()
            self._replica.publish(group)


def describe(event: object) -> str:
    """Description of the frame that came instead of the expected one, for an error message."""
    if isinstance(event, Frame):
        return f"a {event.kind.name} frame of group {event.group}, step {event.step}, version {event.version}"
    return type(event).__name__
