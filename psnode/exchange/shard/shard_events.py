"""Events that a shard posts into the inbox of its rank."""

from __future__ import annotations

from typing import NamedTuple

from psnode.errors import PsnodeError
from psnode.exchange.shard.median_clipping import Clipped
from psnode.records.history import AddedGradient


class GroupClosed(NamedTuple):
    """`group` was brought to `version` by the `added` gradients; its frames to all `recipients` were `nbytes` long.

    `clipped`: those of the added pushes of which a part returns to its sender.
    """

    group: int
    version: int
    nbytes: int
    added: tuple[AddedGradient, ...]
    clipped: tuple[Clipped, ...] = ()
    recipients: tuple[int, ...] = ()


class Refused(NamedTuple):
    """The push of rank `sender` for `group` cannot be decoded, or is out of bounds."""

    group: int
    sender: int
    error: PsnodeError


class Scaled(NamedTuple):
    """Of the push of rank `sender` for `group`, which is out of bounds, a part counts, and the rest returns to its memory."""

    group: int
    sender: int
    error: PsnodeError


class NotApplied(NamedTuple):
    """The sum of the gradients of `ranks` for `group` is not finite."""

    group: int
    ranks: tuple[int, ...]

    @property
    def reason(self) -> str:
        """One line for the user."""
        names = ", ".join(map(str, self.ranks))
        return f"the sum of the gradients of ranks {names} for group {self.group} is not finite: it goes without an update"
