"""Withdrawal of a worker that is lost in the middle of a round, if all shards must add the same gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from psnode.errors import WireError
from psnode.exchange.shard.remote.flush import Flush
from psnode.exchange.shard.remote.kept_frames import split_frames
from psnode.protocol.wire import Bytes, Frame


class Calls(Protocol):
    """Calls to shards, see ShardCalls. If an answer is missing, its rank is lost or silent."""

    @property
    def ranks(self) -> list[int]:
        """The ranks of all shards that are called, ascending."""

    def order(self, name: str, to: Sequence[int] | None = None, **arguments: Any) -> int:
        """Order all shards, or the shards of the ranks in `to`, to call their method `name`. Return the number of the order."""

    def ask(self, name: str, seconds: float, *, to: Sequence[int] | None = None, **arguments: Any) -> dict[int, Frame]:
        """Give an order, and return the answers by rank."""

    def results(self, name: str, seconds: float, **arguments: Any) -> dict[int, Any]:
        """Give an order, and return the results by rank."""

    def pass_on(self, frame: Bytes, to: Sequence[int]) -> None:
        """Send the sealed gradient frame of a lost worker to the shards of the ranks in `to`."""


def withdraw_from_all(calls: Calls, rank: int, job: int, seconds: float, *, is_open: bool) -> None:
    """Make all shards go on without the worker `rank`. For each group, either all shards count its gradient or no shard does.

    `is_open`: True if some shard has an open group. `seconds`: the longest wait for an answer. Raises WireError for an answer
    that cannot be true. After their answers, the shards get messages about `rank` only from the master, and all in the same
    order. So a further loss cannot make the shards differ.
    """
    if is_open:
        for frame, lacking in _flushed(calls, rank, job, seconds):
            calls.pass_on(frame, lacking)
    calls.order("withdraw", rank=rank)


def _flushed(calls: Calls, rank: int, job: int, seconds: float) -> list[tuple[Bytes, list[int]]]:
    """Return the gradient frames of `rank` that only some shards have, each with the ranks that lack the frame."""
    asked = calls.ranks
    flush = Flush(asked)
    for other, groups in calls.results("have", seconds, rank=rank).items():
        if not isinstance(groups, list) or any(type(group) is not int for group in groups):
            raise WireError("the groups of a gradient are no list of numbers", other)
        flush.hear(other, groups)
    for other in flush.awaited:
        flush.lose(other)
    frames: dict[int, Bytes] = {}
    while wanted := flush.to_fetch:
        holder, groups = next(iter(wanted.items()))
        answers = calls.ask("hand", seconds, to=[holder], rank=rank, groups=groups)
        if holder not in answers:
            flush.lose(holder)
            continue
        for group, frame in zip(groups, split_frames(answers[holder], job, rank, groups), strict=True):
            frames[group] = frame
            flush.fetched(group)
        answers[holder].release()
    return [(frame, lacking) for group, frame in frames.items() if (lacking := flush.lacking(group))]
