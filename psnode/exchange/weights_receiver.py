"""Receiver of published weights: a worker applies each group as late as possible, before the group's first use.

Between a worker's backward pass and its next forward pass a new version of the weights arrives: one frame (a part) per group,
and a VERSION_COMPLETE frame that closes the version. The forward pass need not wait for the whole version: each layer waits
only for its own weights.

Groups may come from several ranks. The frames of one rank arrive in the order in which they were sent, but frames of different
ranks arrive in any order. So the VERSION_COMPLETE frame of a version may arrive before the version's last part, or after a
part of the next version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.registry import known_codec
from psnode.errors import DeadlineExceededError, WireError
from psnode.exchange.early_frames import EarlyFrames, describe
from psnode.exchange.flow_control import limit_of
from psnode.exchange.replica import Replica
from psnode.plans.groups import Plan
from psnode.plans.roles import MASTER
from psnode.protocol import wire
from psnode.protocol.channel import FrameChannel, RemoteFailureError, StopRequest
from psnode.protocol.messages import Failure, Reshard
from psnode.protocol.wire import Flag, Frame, Kind
from psnode.records import tensorfile
from psnode.records.timeline import Tracer
from psnode.transport.clock import Clock

_IDENTITY = known_codec("identity")
_SLACK = 4  # factor on the master's own limit, which does not count all frames


class Receiver:
    """Receiver that puts versions of the weights in place, one after another. Only the training thread uses it.

    `sources`: by group, the rank that sends the group's weights. `downlink`: by segment, the codec of DELTA frames.
    `patience`: the longest time in seconds for which the master may be silent. `root`: a rank that may also send all groups,
    see EarlyFrames. `waited`: the seconds spent waiting for the expected version.

    `returned(step, groups)` is called with the groups of this worker's gradient of `step` that were not used. `clipped(step,
    factors)` is called with the groups that were used only in part.
    """

    def __init__(
        self,
        link: FrameChannel,
        plan: Plan,
        replica: Replica,
        sources: Sequence[int],
        downlink: Sequence[Codec] | None,
        tracer: Tracer,
        patience: float,
        returned: Callable[[int, Sequence[int]], None],
        clipped: Callable[[int, Mapping[int, np.float32]], None],
        *,
        root: int | None = None,
    ) -> None:
        self._link = link
        self._root = root
        self._plan = plan
        self._replica = replica
        self._sources = sources
        self._downlink = downlink
        self._tracer = tracer
        self._patience = patience
        self._returned = returned
        self._clipped = clipped
        self._early = EarlyFrames(sources, _SLACK * limit_of(4 * plan.size), root)
        self.version = 0  # the expected version, which is in place or arriving
        self._closing: Frame | None = None  # VERSION_COMPLETE, while parts of the version are missing
        self._flags: Flag | None = None
        self._skipped = False  # True if this rank lacks the previous version, so that a DELTA has no base
        self._spare = False  # True if the last closed version had Flag.SPARE: this rank computes no gradients
        self.missing: set[int] = set()  # groups whose weights in place are still those of an older version
        self.waited = 0.0
        self.deal: Reshard | None = None  # the newest RESHARD received, until the training loop takes it
        self.statistics: dict[str, torch.Tensor] = {}  # buffers that come with `deal` for a rank that has no buffers of its own
        self.applied: int | None = None  # number of applied gradients; None if it follows from the version's number
        self.gradient_norm: float | None = None  # norm of the version's mean gradient, before clipping; None if not received
        self._answer_to_evaluation: Frame | None = None
        self.checkpoints: list[int] = []  # checkpoints to which this rank must still contribute

    def expect(self, version: int) -> None:
        """Expect `version` from now on. The caller must call `require` for every weight before the weight is used."""
        self.waited = 0.0
        self._expect(version, skipping=False)

    def _expect(self, version: int, *, skipping: bool) -> None:
        self.version = version
        self._closing = self._flags = None
        self._skipped = skipping
        self.missing = {group.index for group in self._plan.groups}
        self._early.expect(version, skipping=skipping)

    def hold(self, version: int) -> None:
        """Record that the weights in place are those of `version`, which is not closed yet."""
        self.expect(version)
        self.missing = set()

    def assume(self, version: int) -> None:
        """Record that all weights of `version` are in place, and that the version is closed."""
        self.expect(version)
        self.missing, self._flags = set(), Flag.NONE

    def require(self, start: int, stop: int) -> None:
        """Block until the coordinates [start, stop) have the values of the expected version.

        Meanwhile, handle all other frames.
        """
        if any(start < self._plan.groups[index].stop and self._plan.groups[index].start < stop for index in self.missing):
            wanted = {g.index for g in self._plan.groups if start < g.stop and g.start < stop}
            self._take_while(lambda: bool(wanted & self.missing))

    def complete(self) -> Flag:
        """Block until the expected version is in place and closed. Return the flags of the VERSION_COMPLETE frame."""
        self._take_while(lambda: self._flags is None)
        assert self._flags is not None
        return self._flags

    def await_answer(self) -> Frame:
        """Block until the master answers this worker's report of an evaluation. Return the answer.

        All other frames that arrive are kept.
        """
        while (found := self._answer_to_evaluation) is None:
            self._keep(self.listen())
        self._answer_to_evaluation = None
        return found

    def behind(self) -> bool:
        """Return True if this worker lags, so that it must apply later versions before it computes.

        It lags if a later version has completely arrived. It also lags if the master waits for this worker's answer (ASK with
        HOLD) before it sends more weights. All frames that have arrived are kept; the call does not wait for more frames.
        """
        try:
            while not self._early.ended:
                self._keep(self._link.next(0))
        except DeadlineExceededError:
            pass
        return any(frame.version > self.version and self._is_there(frame) for frame in self._early.others)

    def _is_there(self, frame: Frame) -> bool:
        """Return True if `frame` has Flag.HOLD, or if it closes a version of which all parts have arrived."""
        return Flag.HOLD in frame.flags or (frame.kind is Kind.VERSION_COMPLETE and self._early.is_whole(frame.version))

    def _keep(self, event: object) -> None:
        if isinstance(event, StopRequest):
            self._link.send(MASTER, Kind.STOP_REQUEST, event.reason.encode())
        elif isinstance(event, Frame) and event.kind is Kind.END:
            raise RemoteFailureError(MASTER, Failure("the job has ended without this worker", 0))
        elif isinstance(event, Frame) and event.kind is Kind.EVALUATED:
            self._answer_to_evaluation = event
        elif isinstance(event, Frame):
            if event.kind is not Kind.PING:
                self._early.put(event)
        else:
            raise WireError(f"rank {self._link.rank} did not expect an event: {type(event).__name__}")

    def _take_while(self, unfinished: Callable[[], bool]) -> None:
        if not unfinished():
            return
        begin = time.perf_counter()
        with self._tracer.span("wait", version=self.version):
            while unfinished():
                self._take()
        self.waited += time.perf_counter() - begin

    def _take(self) -> None:
        """Put the next part in place, or carry out the next control frame of the master. If neither is due, wait for a frame."""
        if (part := self._early.part(self.version)) is not None:
            self._place(part)
        elif (self._closing is None or self._is_cut_off()) and (word := self._early.other()) is not None:
            self._follow(word)
        else:
            self._keep(self.listen())
            self._check_senders()

    def _is_cut_off(self) -> bool:
        """Return True if parts of the expected version were lost, and the root has sent all weights of a later version."""
        return self._root is not None and self._early.is_replaced(self.version)

    def _place(self, part: Frame) -> None:
        """Apply a part of the expected version. With a `root`, drop a part that is not needed or cannot be used.

        Without a `root`, such a part is an error, unless it holds whole weights. These may come twice if a worker is suspended
        and readmitted immediately.
        """
        useless = part.group not in self.missing
        without_base = part.kind is Kind.DELTA and self._skipped
        if self._root is not None and (useless or without_base):
            part.release()
            return
        if without_base or (part.kind is Kind.DELTA and useless):
            raise self._unexpected(part)
        self._apply(part)
        self.missing.discard(part.group)
        if self._closing is not None and not self.missing:
            self._close(self._closing)

    def _follow(self, word: Frame) -> None:
        """Carry out `word`, the next control frame of the master. All frames that came before it have been carried out."""
        if word.kind is Kind.ASK and Flag.HOLD in word.flags:  # the master sends no version before the answer
            self._answer(word)
            return
        if word.version > self.version:
            self._skip(word)
            return
        if self._spare and word.version == self.version - 1 and len(self.missing) == len(self._plan.groups):
            self.hold(word.version)  # no worker of the round is left: this spare may take its place, or no version follows
        if word.version != self.version:
            raise self._untimely(word)
        match word.kind:
            case Kind.VERSION_COMPLETE:
                if self._root is None and any(self._sources[group] == word.sender for group in self.missing):
                    raise self._unexpected(word)
                self._closing = word
                if not self.missing:
                    self._close(word)
                self._check_senders()
            case Kind.CLIP:
                self._clipped(word.step, wire.unpack_factors(word.body, len(self._plan.groups), word.sender))
            case Kind.STATE:
                self.statistics = tensorfile.parse(bytes(word.body), "what the master knows of the buffers")
            case Kind.RESHARD:
                self.deal = Reshard.from_bytes(word.body, word.sender)
            case Kind.EPOCH:
                self.applied = word.step
            case Kind.NORM:
                self.gradient_norm = wire.unpack_norm(word.body, word.sender)
            case Kind.ASK:
                self._answer(word)
            case _:
                raise self._unexpected(word)

    def _skip(self, word: Frame) -> None:
        """Go on with the version of `word`. This worker was suspended, and is readmitted with whole weights of that version."""
        sent = [group.index for group in self._plan.groups if self._sources[group.index] == word.sender]
        if not all(self._early.has(word.version, group) for group in sent):
            raise self._untimely(word)
        self._expect(word.version, skipping=True)
        self._early.put_back(word)  # the parts that have come are applied first

    def _close(self, word: Frame) -> None:
        """Close the version, whose parts are all in place.

        Keep the flags of `word`, and report the unused groups of this worker.
        """
        if unused := wire.unpack_groups(word.body, len(self._plan.groups), word.sender):
            self._returned(word.step, unused)
        self._closing, self._flags = None, word.flags
        self._spare = Flag.SPARE in word.flags

    def _check_senders(self) -> None:
        """Raise WireError if the expected version is declared complete, but a missing part of it can no longer come.

        A part can no longer come if its sender has sent parts of a later version.
        """
        for group in self.missing if self._closing is not None else ():
            if self._early.passed(group, self.version) and not self._early.has(self.version, group):
                raise WireError(f"group {group} of version {self.version} was left out", self._sources[group])

    def _untimely(self, frame: Frame) -> WireError:
        return WireError(
            f"rank {self._link.rank} expected version {self.version} of the weights and got {describe(frame)}", frame.sender
        )

    def _unexpected(self, frame: Frame) -> WireError:
        return WireError(f"rank {self._link.rank} did not expect {describe(frame)}", frame.sender)

    def _answer(self, question: Frame) -> None:
        """Answer `question`, an ASK frame. All frames sent before it have been taken.

        If it asks for a contribution to a checkpoint, only record the step of the checkpoint.
        """
        if Flag.CHECKPOINT in question.flags:
            self.checkpoints.append(question.step)
        else:
            self._link.send(MASTER, Kind.ASK, step=question.step, version=question.version)

    def listen(self) -> object:
        """Return the next event. Raises DeadlineExceededError if the master is silent for more than `patience` seconds."""
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
        """Replace the weights of a group by those in a frame, or add the change in the frame to them."""
        group = self._plan.groups[frame.group]
        with self._tracer.span("apply", group=frame.group):
            if frame.kind is Kind.WEIGHTS:
                [data] = wire.split_group(frame.body, 1, frame.sender)
                _IDENTITY.decode(Payload.from_bytes(data), out=self._replica.weights[group.start : group.stop])
                self._replica.publish(group.start, group.stop)
            elif self._downlink is not None:
                parts = wire.split_group(frame.body, len(group.segments), frame.sender)
                for segment, data in zip(group.segments, parts, strict=True):
                    self._replica.change(segment, self._downlink[segment.index], Payload.from_bytes(data))
            frame.release()
