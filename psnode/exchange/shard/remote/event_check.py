"""Check of the events that a shard on another rank reports. If the master believed a false event, a round might never end."""

from __future__ import annotations

import math
from collections.abc import Collection

from psnode.exchange.shard.remote.shard_messages import ShardEvent
from psnode.exchange.shard.shard_events import GroupClosed, NotApplied, Refused, Scaled, Squares, Took
from psnode.plans.part import PlanPart


def fits(
    event: ShardEvent, part: PlanPart, unfinished: Collection[int], version: int, ranks: Collection[int], *, summed: bool
) -> bool:  # fmt: skip
    """Return True if `event` can have happened in the shard of `part`, in the round that makes `version`.

    `unfinished`: the shard's open groups. `ranks`: the awaited ranks. `summed`: True if the shard's squared norms of this
    round have come.
    """
    match event:
        case GroupClosed():
            named = {added.rank for added in event.added} | {clipped.rank for clipped in event.clipped}
            sound = event.group in unfinished and event.version == version and event.nbytes >= 0
            return sound and named <= set(ranks) and all(0 <= clipped.factor < 1 for clipped in event.clipped)
        case Squares():
            sound = set(event.squares) == set(part.groups) and not summed
            return sound and all(0 <= square < math.inf for square in event.squares.values())
        case Refused() | Scaled():
            return event.group in unfinished and event.sender in ranks
        case NotApplied():
            return event.group in unfinished
        case Took():
            return event.received >= 0 and all(0 <= value < math.inf for value in event.seconds.values())
    return True
