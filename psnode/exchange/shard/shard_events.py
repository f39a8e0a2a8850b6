"""Events that a shard posts to the inbox of its rank or sends to the master."""

from __future__ import annotations

from typing import NamedTuple

from psnode.errors import PsnodeError
from psnode.exchange.shard.median_clipping import Clipped
from psnode.records.history import AddedGradient


class GroupClosed(NamedTuple):
    """Event: the gradients `added` brought `group` to `version`. `nbytes`: the bytes of the group's frames to all recipients.

    `clipped`: those of the added pushes of which a part returns to the sender.
    """

    group: int
    version: int
    nbytes: int
    added: tuple[AddedGradient, ...]
    clipped: tuple[Clipped, ...] = ()


class Refused(NamedTuple):
    """Event: the push of rank `sender` for `group` is not used: it cannot be decoded, or its gradient's norm is out of bounds."""

    group: int
    sender: int
    error: PsnodeError


class Scaled(NamedTuple):
    """Event: the norm of rank `sender`'s gradient is out of bounds. Only a part of its push for `group` counts.

    The rest returns to the sender's residual.
    """

    group: int
    sender: int
    error: PsnodeError


class NotApplied(NamedTuple):
    """Event: the sum of the gradients of `ranks` for `group` is not finite, and is not applied."""

    group: int
    ranks: tuple[int, ...]

    @property
    def reason(self) -> str:
        """One line for the user, which says why the group is not updated."""
        names = ", ".join(map(str, self.ranks))
        return f"the sum of the gradients of ranks {names} for group {self.group} is not finite: it goes without an update"


class Took(NamedTuple):
    """Event: all groups of a shard are closed, so that its round is over.

    `seconds`: the time, by name of the work, that the shard has spent since the last Took event. `received`: the bytes of
    gradients that have come from other ranks since that event, frame headers included.
    """

    rank: int
    seconds: dict[str, float]
    received: int = 0


class Squares(NamedTuple):
    """Event: all groups of a shard are summed. `squares`: squared norms of their mean gradients, by group.

    `added`: True if any of the groups has a gradient.
    """

    squares: dict[int, float]
    added: bool


class StatePart(NamedTuple):
    """Event: the shard of `rank` has handed over its state of `version`. `content`: the state, see ComingState.add."""

    rank: int
    version: int
    content: bytes
