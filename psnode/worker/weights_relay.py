"""Relay of weights: a thread of a worker that passes frames of weights on to other workers before its own worker uses them.

The bytes are passed on unchanged, without a copy and immediately, even while the worker computes. Then the frame is posted
to the worker's inbox. A frame's header names the rank that made it; the posted frame names the rank from which it has come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from psnode.errors import DeadlineExceededError, WireError
from psnode.exchange.early_frames import unexpected
from psnode.exchange.routes.route import Route
from psnode.protocol import wire
from psnode.protocol.channel import RELAY_TAG, FrameChannel
from psnode.protocol.wire import Kind
from psnode.transport.base import Arrival, Pending

_LONG = 3600.0  # seconds of one wait, after which the thread waits again


class _Leaving:
    """The event that the worker leaves."""


class _Passed:
    """A message that is being sent on while the worker uses it. `release` gives its memory back."""

    def __init__(self, release: Callable[[], None], sends: Sequence[Pending]) -> None:
        self._release, self._sends = release, sends
        self._used = False

    def use_no_more(self) -> None:
        """Note that the worker no longer needs the message. Any thread may call this."""
        self._used = True

    def settle(self) -> bool:
        """Give the memory back if it is no longer needed, and return True if so."""
        if not self._used or not all(pending.done for pending in self._sends):
            return False
        self._release()
        return True


class WeightsRelay:
    """Relays frames of weights along `routes` to other workers, for the worker that owns `link`, until `close`.

    Frames come from the rank that the route names. If that rank is lost or silent, they come from the root itself. Frames
    and errors are posted to the inbox of `link`.
    """

    def __init__(self, link: FrameChannel, routes: Sequence[Route]) -> None:
        self._link, self._routes = link, routes
        self._inbox = link.transport.inbox(RELAY_TAG)
        self._passed: list[_Passed] = []
        self._thread = threading.Thread(target=self._run, name=f"relay-{link.rank}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Pass on all frames that have come, and end the thread."""
        self._inbox.post(_Leaving())
        self._thread.join()

    def _run(self) -> None:
        while not isinstance(event := self._next(), _Leaving | Exception):
            if isinstance(event, Arrival):
                try:
                    self._pass_on(event)
                except Exception as error:  # the worker's main thread raises it
                    self._link.inbox.post(error)
            self._passed = [message for message in self._passed if not message.settle()]

    def _next(self) -> object:
        """Return the next event, which may be a failure of the transport. The worker's main thread gets such a failure too."""
        while True:
            try:
                return self._inbox.wait(_LONG)
            except DeadlineExceededError:
                continue

    def _pass_on(self, arrival: Arrival) -> None:
        link = self._link
        frame = wire.unpack(arrival.data, job=link.job, source=arrival.source, origin=self._routes[0].root)
        if frame.kind not in (Kind.WEIGHTS, Kind.DELTA) or frame.group >= len(self._routes):
            raise unexpected(frame)
        route = self._routes[frame.group]
        if arrival.source not in (route.root, route.down(link.rank)):
            raise WireError(f"rank {link.rank} gets no weights by way of rank {arrival.source}", arrival.source)
        message = _Passed(arrival.release, link.send_frame(route.heirs(link.rank), arrival.data, RELAY_TAG))
        self._passed.append(message)
        link.inbox.post(replace(frame, sender=arrival.source, release=message.use_no_more))
