"""Channels: frames sent and received over a transport, and the message handling that workers and the master have in common."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

from psnode.errors import DeadlineExceededError, NonFiniteLossError, PeerLostError, PsnodeError, in_one_line
from psnode.plans.roles import MASTER
from psnode.protocol import wire
from psnode.protocol.messages import Failure
from psnode.protocol.wire import Bytes, Flag, Frame, Kind
from psnode.transport.base import Arrival, PeerLost, Pending, Transport

_LOG = logging.getLogger(__name__)
_LONGEST = 20_000  # characters of a traceback

TAG = 0  # transport tag of master and workers
SHARD_TAG = 2  # transport tag of the shards on ranks other than the master, which have inboxes of their own
RELAY_TAG = 3  # transport tag, with an inbox of its own, of the frames that a worker forwards to other ranks before it uses them
ENOUGH = "enough"  # reason of a StopRequest: the training program wants no more steps


class RemoteFailureError(PsnodeError):
    """Another rank reported that it cannot continue; this rank exits with the same code."""

    def __init__(self, rank: int, failure: Failure, step: int = 0) -> None:
        super().__init__(failure.message if rank == MASTER else f"rank {rank}: {failure.message}")
        self.rank = rank
        self.failure = failure
        self.step = step
        self.exit_code = failure.exit_code

    def show(self) -> None:
        """Log the traceback that the other rank has reported, if its report contains one."""
        if self.failure.traceback:
            _LOG.error("rank %d cannot continue:\n%s", self.rank, self.failure.traceback.rstrip("\n"))


def tag_of(root: int) -> int:
    """Return the tag of the messages that carry gradients to the rank `root`, the root of their groups."""
    return TAG if root == MASTER else SHARD_TAG


class StopRequest(NamedTuple):
    """The event, in a rank's inbox, that this process was asked to stop.

    `reason`: the name of a signal, or ENOUGH if the training program wants no more steps.
    """

    reason: str


class ControlBytes(NamedTuple):
    """Bytes of control messages at one end of a channel, headers included.

    Control messages are all messages except group frames and PROBE frames, which measure links.
    """

    received: int
    sent: int


class FrameChannel:
    """Receives the frames with `tag` that come to this rank, and sends frames to other ranks.

    Frames are sent with the tag `to` (by default `tag`), unless a call names another tag. `job`: the digest in the headers of
    all frames; 0 before the ranks agree on the configuration. `watched`: only the loss of one of these ranks ends a wait; None
    means all ranks.
    """

    def __init__(
        self, transport: Transport, tag: int = TAG, *, to: int | None = None, watched: Collection[int] | None = None
    ) -> None:
        self.transport = transport
        self.tag = tag if to is None else to
        self.inbox = transport.inbox(tag)
        self.rank = transport.rank
        self.job = 0
        self._watched = watched
        self._control = ControlBytes(0, 0)
        self._counting = threading.Lock()

    @property
    def control(self) -> ControlBytes:
        """The bytes of the control messages sent and received so far."""
        return self._control

    def send(
        self,
        ranks: int | Sequence[int],
        kind: Kind,
        body: bytes = b"",
        *,
        step: int = 0,
        version: int = 0,
        flags: Flag = Flag.NONE,
        tag: int | None = None,
    ) -> list[Pending]:
        """Send a control message to one rank or to several."""
        frame = wire.pack(kind, body, sender=self.rank, job=self.job, step=step, version=version, flags=flags)
        self._count(kind, sent=frame.size * (1 if isinstance(ranks, int) else len(ranks)))
        return self.send_frame(ranks, frame, tag)

    def send_frame(self, ranks: int | Sequence[int], frame: Bytes, tag: int | None = None) -> list[Pending]:
        """Send a sealed frame to one rank or to several. The channel does not copy it. Any thread may call this.

        The frame must not change before every returned Pending is done.
        """
        ranks = (ranks,) if isinstance(ranks, int) else ranks
        return [self.transport.send(rank, self.tag if tag is None else tag, (frame,)) for rank in ranks]

    def fail(self, ranks: int | Sequence[int], error: BaseException, *, debug: bool = False) -> None:
        """Inform other ranks that this rank cannot continue because of `error`.

        The message includes the traceback if `debug` is True, or if psnode did not raise the error on purpose (a bug, or a fault
        of the task).
        """
        if isinstance(error, PsnodeError):
            failure = Failure(" ".join(str(error).split()), error.exit_code, _formatted(error) if debug else "")
        else:
            failure = Failure(in_one_line(error), PsnodeError.exit_code, _formatted(error))
        step = 0
        if isinstance(error, NonFiniteLossError):
            step, failure = error.step, replace(failure, loss=f"{error.value}")
        self.send(ranks, Kind.FAILED, failure.to_bytes(), step=step)

    def next(self, seconds: float) -> object:
        """Return the next frame, or the next event that this rank's own threads have posted to the inbox.

        Raises DeadlineExceededError after `seconds`, PeerLostError when a watched rank is lost, WireError for a bad frame,
        RemoteFailureError for a FAILED frame, and any exception that a helper thread has posted.
        """
        end = time.monotonic() + seconds
        event = self.inbox.wait(seconds)
        while isinstance(event, PeerLost) and self._watched is not None and event.rank not in self._watched:
            event = self.inbox.wait(end - time.monotonic())
        if isinstance(event, Arrival):
            frame = wire.unpack(event.data, job=self.job, source=event.source, release=event.release)
            self._count(frame.kind, received=event.data.size)
            if frame.kind is Kind.FAILED:
                raise RemoteFailureError(frame.sender, Failure.from_bytes(frame.body, frame.sender), frame.step)
            return frame
        if isinstance(event, PeerLost):
            raise PeerLostError(event.rank, event.reason)
        if isinstance(event, Exception):
            raise event
        return event

    def forward_requests(self, rank: int) -> None:
        """Forward to `rank` all requests to stop that are in the inbox. Everything else stays in the inbox."""
        others: list[object] = []
        while (event := self.inbox.poll()) is not None:
            if isinstance(event, StopRequest):
                self.send(rank, Kind.STOP_REQUEST, event.reason.encode())
            else:
                others.append(event)
        self.inbox.put_back(others)

    def expect(self, kind: Kind, seconds: float, *others: Kind) -> Frame:
        """Return the next frame, which must be of `kind` or of a kind in `others`. Requests to stop stay in the inbox.

        Raises DeadlineExceededError after `seconds`, and PsnodeError for any other frame or event.
        """
        end = time.monotonic() + seconds
        requests: list[object] = []
        try:
            while isinstance(event := self.next(end - time.monotonic()), StopRequest):
                requests.append(event)
        except DeadlineExceededError:
            raise DeadlineExceededError(
                f"rank {self.rank} waited {seconds:g} s for a {kind.name} frame: the other side is gone or stuck"
            ) from None
        finally:
            self.inbox.put_back(requests)
        if not isinstance(event, Frame) or event.kind not in (kind, *others):
            what = event.kind.name if isinstance(event, Frame) else type(event).__name__
            raise PsnodeError(f"rank {self.rank} expected a {kind.name} frame and got {what}")
        return event

    def _count(self, kind: Kind, *, received: int = 0, sent: int = 0) -> None:
        if kind not in wire.CODED and kind is not Kind.PROBE:
            with self._counting:  # the heartbeat sends from another thread
                self._control = ControlBytes(self._control.received + received, self._control.sent + sent)


def _formatted(error: BaseException) -> str:
    """Return the traceback of an error as Python prints it, or only its end if it is very long."""
    return "".join(traceback.format_exception(error))[-_LONGEST:]
