"""Early frames: frames that a worker receives before it can use them. Frames from different senders arrive in any order."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from psnode.errors import WireError
from psnode.plans.roles import MASTER
from psnode.protocol.wire import HEADER_BYTES, Flag, Frame, Kind

_PARTS = (Kind.WEIGHTS, Kind.DELTA)


class EarlyFrames:
    """Store of early frames: parts of versions, by version and group, and the master's other frames in their order.

    A part is a frame with the weights of one group. `sources[g]` is the rank that sends group g. Frames of one rank come in
    the order in which it sent them. At most `limit` bytes are kept. STATE frames do not count, since only one comes when a
    spare replaces a worker.

    `root`: a rank that may also send every group, or None. With a `root`, the parts of a version come by two routes, in any
    order and possibly twice. Parts that are no longer needed are then dropped.

    Raises WireError for a frame that its sender must not send, for a part of an older version than the sender's last part
    (without a `root`), and if more than `limit` bytes are kept. The error names the sender. If too many bytes are kept, it
    names the rank that sent most of them.
    """

    def __init__(self, sources: Sequence[int], limit: int, root: int | None = None) -> None:
        self._sources = sources
        self._root = root
        self._limit = limit
        self._parts: dict[int, dict[int, Frame]] = {}
        self._others: deque[Frame] = deque()
        self._newest = dict.fromkeys(sources, 0)  # the version of each sender's last part
        self._bytes: Counter[int] = Counter()  # number of bytes kept, by sender
        self._total = 0
        self._due = 0
        self._whole = -1  # the newest version that was completely put in place; later versions before `_due` were skipped

    def expect(self, version: int, *, skipping: bool = False) -> None:
        """Expect frames of `version`, and drop the parts of earlier versions.

        Unless `skipping` is True, all weights of version - 1 are in place.
        """
        self._due = version
        if not skipping:
            self._whole = version - 1
        for earlier in [kept for kept in self._parts if kept < version]:
            for frame in self._parts.pop(earlier).values():
                self._drop(frame)

    def put(self, frame: Frame) -> None:
        """Keep a frame until it is due.

        Without a `root`, a part of a version before the expected one is dropped if it holds whole weights or if its version was
        skipped. Any other such part is an error. With a `root`, every part of an earlier version is dropped.
        """
        if frame.kind not in _PARTS:
            if frame.sender != MASTER:
                raise unexpected(frame)
            self._others.append(frame)
        elif frame.group >= len(self._sources) or frame.sender not in (self._sources[frame.group], self._root):
            raise unexpected(frame)
        elif self._root is not None:
            if frame.version < self._due or (frame.kind is Kind.DELTA and self.has(frame.version, frame.group)):
                frame.release()
                return
            self._put_part(frame)
        else:
            if frame.version < self._newest[frame.sender]:
                raise WireError(f"{describe(frame)} came after one of version {self._newest[frame.sender]}", frame.sender)
            self._newest[frame.sender] = frame.version
            if frame.version < self._due and (frame.kind is Kind.WEIGHTS or frame.version > self._whole):
                frame.release()
                return
            self._put_part(frame)
        self._count(frame, 1)

    def _put_part(self, frame: Frame) -> None:
        """Keep a part, at most one per group and version. Whole weights replace a part that has come earlier."""
        earlier = self._parts.get(frame.version, {}).get(frame.group)
        if frame.version < self._due or (earlier is not None and frame.kind is Kind.DELTA):
            raise unexpected(frame)
        parts = self._parts.setdefault(frame.version, {})
        if earlier is not None:
            self._drop(earlier)
        parts[frame.group] = frame

    def part(self, version: int) -> Frame | None:
        """Remove and return the oldest part of `version`. Return None if there is none."""
        if not (parts := self._parts.get(version)):
            return None
        frame = parts.pop(next(iter(parts)))
        self._count(frame, -1)
        return frame

    def has(self, version: int, group: int) -> bool:
        """Return True if the part of `group` in `version` has come and is still kept."""
        return group in self._parts.get(version, ())

    def is_whole(self, version: int) -> bool:
        """Return True if the parts of all groups in `version` have come and are still kept."""
        return len(self._parts.get(version, ())) == len(self._sources)

    def is_replaced(self, version: int) -> bool:
        """Return True if the next frame in `others` is of a later version, and all whole weights of that version have come."""
        following = self._others[0].version if self._others else version
        whole = [frame for frame in self._parts.get(following, {}).values() if frame.kind is Kind.WEIGHTS]
        return following > version and len(whole) == len(self._sources)

    def passed(self, group: int, version: int) -> bool:
        """Return True if the part of `group` in `version` can no longer come.

        This is so if only one rank sends the group and has already sent a part of a later version.
        """
        return self._root is None and self._newest[self._sources[group]] > version

    @property
    def others(self) -> Iterator[Frame]:
        """The master's frames that are not parts of versions, oldest first."""
        return iter(self._others)

    @property
    def ended(self) -> bool:
        """True if the newest frame in `others` closes the job's last version. Later frames are then meant for other code."""
        return bool(self._others) and Flag.STOP in self._others[-1].flags

    def other(self) -> Frame | None:
        """Remove and return the oldest frame of `others`. Return None if there is none."""
        if not self._others:
            return None
        frame = self._others.popleft()
        self._count(frame, -1)
        return frame

    def put_back(self, frame: Frame) -> None:
        """Undo `other`: make `frame` the oldest of `others` again."""
        self._others.appendleft(frame)
        self._count(frame, 1)

    def _drop(self, frame: Frame) -> None:
        self._count(frame, -1)
        frame.release()

    def _count(self, frame: Frame, sign: int) -> None:
        if frame.kind is Kind.STATE:
            return
        nbytes = sign * (HEADER_BYTES + frame.body.size)
        self._bytes[frame.sender] += nbytes
        self._total += nbytes
        if sign > 0 and self._total > self._limit:
            [(sender, nbytes)] = self._bytes.most_common(1)
            raise WireError(f"{nbytes} bytes of frames are not due yet, {self._limit} are the most that may be kept", sender)


def describe(frame: Frame) -> str:
    """Return a description, for an error message, of a frame that came instead of the expected one."""
    return f"a {frame.kind.name} frame of group {frame.group}, step {frame.step}, version {frame.version}"


def unexpected(frame: Frame) -> WireError:
    """Return the error for a frame that its sender must not send at this stage."""
    return WireError(f"no rank is to send {describe(frame)} now", frame.sender)
