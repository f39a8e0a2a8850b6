"""Gradient frames of the open round. A shard keeps them, because other shards may need the frames of a worker that is lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from psnode.errors import WireError
from psnode.protocol import wire
from psnode.protocol.wire import Bytes, Frame, Kind


class KeptFrames:
    """Store of the gradient frames that other workers have sent in the open round, by sender and group.

    The memory of the frames, at most one coded gradient of every other worker, is in use until `clear`.
    """

    def __init__(self) -> None:
        self._frames: dict[tuple[int, int], Frame] = {}

    @staticmethod
    def lent(frame: Frame) -> Frame:
        """Return a copy of the frame for another reader. Its `release` does not free the memory."""
        return replace(frame, release=_nothing)

    def add(self, frame: Frame) -> None:
        """Keep a frame."""
        self._frames[frame.sender, frame.group] = frame

    def groups(self, rank: int) -> list[int]:
        """Return the groups for which a frame of `rank` is kept, ascending."""
        return sorted(group for sender, group in self._frames if sender == rank)

    def sealed(self, rank: int, groups: Iterable[int], job: int) -> bytes:
        """Return the frames of `rank` for `groups`, one after another, with the same bytes as `rank` has sent."""
        return b"".join(_sealed(self._frames[rank, group], job).tobytes() for group in groups)

    def clear(self) -> None:
        """Free the memory of all frames. Call this when all shards have closed the round."""
        for frame in self._frames.values():
            frame.release()
        self._frames = {}


def _nothing() -> None:
    """Do nothing. This is the `release` of a lent frame, whose memory `clear` frees."""


def _sealed(frame: Frame, job: int) -> Bytes:
    return wire.pack(
        frame.kind, frame.body, sender=frame.sender, job=job, group=frame.group, step=frame.step, version=frame.version,
        flags=frame.flags,
    )  # fmt: skip


def split_frames(answer: Frame, job: int, origin: int, groups: Sequence[int]) -> list[Bytes]:
    """Return copies of the sealed frames in an answer: a gradient frame of rank `origin` for each of `groups`.

    Raises WireError if the answer holds other frames or bytes.
    """
    body, holder = answer.body, answer.sender
    found, start = list[Bytes](), 0
    for group in groups:
        stop = start + wire.frame_bytes(body[start:], holder)
        sealed = body[start:stop].copy()
        frame = wire.unpack(sealed, job=job, source=holder, origin=origin)
        if (frame.kind, frame.group) != (Kind.GRADIENT, group):
            raise WireError(f"a gradient of rank {origin} for group {group} was asked for", holder)
        found.append(sealed)
        start = stop
    if start != body.size:
        raise WireError(f"{body.size - start} bytes are left over behind the gradients of rank {origin}", holder)
    return found
