"""The last whole step of a run whose own code works on rank 0: kept, so that an exception of that code amid a step loses none.

A constraint, an optimizer, or a codec of the program's own runs when some groups of the next step are updated already. So the
values that an update is about to change are copied first (psnode.records.snapshot), as for a checkpoint that is being written,
but in every step.
Where no such code runs nothing is copied: then only a step of which nothing is applied yet can be saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from psnode.exchange.shard.handle import StateHandle
from psnode.master.checkpoints.contents import Draft
from psnode.records.snapshot import size_of
from psnode.records.snapshot_memory import SnapshotMemory


class LastWhole:
    """Keeps the values of the newest version until the next one is whole. For the main thread, but for `protect`.

    `draft` makes the draft of the state of `shard`. `memory`: the most bytes that copies take, 0: a quarter of the free ones.
    Where that does not hold them, none are kept.
    """

    def __init__(self, shard: StateHandle, draft: Callable[[SnapshotMemory], Draft], memory: int) -> None:
        self._shard, self._make = shard, draft
        self._memory = SnapshotMemory(memory)
        self._draft: Draft | None = None
        self._version = -1
        self._facts: Mapping[str, object] = {}
        self._changed = False  # some group is no longer of that version

    def keep(self, version: int, facts: Mapping[str, object]) -> None:
        """`version` is whole, and no group is open. `facts`: entries of its manifest."""
        self.close()
        self._version, self._facts, self._changed = version, facts, False
        if self._shard.runs_own_code and self._memory.holds(size_of(self._shard.memory())):
            self._draft = self._make(self._memory)

    def protect(self, group: int) -> None:
        """`group` is about to change. Called in lanes."""
        self._changed = True
        if (draft := self._draft) is not None:
            draft.snapshot.protect(group)

    def take(self) -> tuple[int, Draft, Mapping[str, object]] | None:
        """The version that was kept, its draft and its facts; None if there is none. It is kept until `close`."""
        if self._draft is None and self._version >= 0 and not self._changed:
            self._draft = self._make(self._memory)
            if self._changed:  # meanwhile: it holds something of both versions
                self.close()
        return None if self._draft is None else (self._version, self._draft, self._facts)

    def close(self) -> None:
        """Nothing is kept."""
        if self._draft is not None:
            self._draft.snapshot.close()
            self._draft = None
