"""The master's heartbeat, which is delayed neither by computations nor by slow workers.

psnode.master.membership handles workers that are silent.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from psnode.errors import TransportError
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Kind
from psnode.transport.base import Pending

SECONDS = 1.0


class Heartbeat:
    """Sends PING to `ranks` every second until closed, except to a rank whose previous PING has not left yet."""

    def __init__(self, link: FrameChannel, ranks: Sequence[int]) -> None:
        self._link = link
        self._ranks = ranks
        self._last: dict[int, list[Pending]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(SECONDS):
            for rank in self._ranks:
                if all(pending.done for pending in self._last.get(rank, ())):
                    try:
                        self._last[rank] = self._link.send(rank, Kind.PING)
                    except TransportError:  # the thread that reads the inbox gets this error too
                        return
