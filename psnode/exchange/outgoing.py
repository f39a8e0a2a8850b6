"""Group frames that are being sent."""

from __future__ import annotations

from collections.abc import Sequence

from psnode.codecs.arrays import Bytes
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Flag, GroupFrame, Kind
from psnode.transport.base import Pending


class OutgoingFrames:
    """Buffers of the last frame of every group. When this frame has left, the group's next frame reuses its buffer.

    Buffers are reused because the first use of a page of memory is slow. Only one thread at a time may use a group.
    """

    def __init__(self, link: FrameChannel) -> None:
        self._link = link
        self._last: dict[int, tuple[Bytes, list[Pending]]] = {}

    def begin(self, group: int, payloads: int, nbytes: int) -> GroupFrame:
        """Return an unfinished frame for `payloads` payloads.

        `nbytes`: the most bytes of all payloads together, padding included.
        """
        last = self._last.get(group)
        free = last is not None and all(pending.done for pending in last[1])
        return GroupFrame(payloads, nbytes, last[0] if last is not None and free else None)

    def send(
        self,
        group: int,
        frame: GroupFrame,
        ranks: int | Sequence[int],
        kind: Kind,
        step: int,
        version: int,
        flags: Flag = Flag.NONE,
        tag: int | None = None,
    ) -> Bytes:
        """Seal the frame and send it to `ranks`, with `tag` if given. Return the sealed frame, which must not be changed."""
        link = self._link
        sealed = frame.seal(kind, flags=flags, sender=link.rank, job=link.job, group=group, step=step, version=version)
        self._last[group] = frame.buffer, link.send_frame(ranks, sealed, tag)
        return sealed

    def send_also(self, group: int, sealed: Bytes, ranks: Sequence[int], tag: int) -> None:
        """Send the group's last frame to more ranks, with another tag. `sealed`: the frame that `send` has returned."""
        self._last[group][1].extend(self._link.send_frame(ranks, sealed, tag))
