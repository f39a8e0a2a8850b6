"""The last complete version, kept so that no step is lost if the program's own code on rank 0 raises within the next step.

The program's own constraint, optimizer or codec may run after some groups of the next step have been updated. Therefore, in
every step, values are copied before an update changes them (psnode.records.snapshots.snapshot). A run without such code
copies nothing; it can save the last version only until the next step updates its first group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from psnode.exchange.shard.handle import StateHandle
from psnode.master.checkpoints.contents import Draft
from psnode.records.snapshots.snapshot import size_of
from psnode.records.snapshots.snapshot_memory import SnapshotMemory


class LastWhole:
    """Keeps the values of the newest complete version until the next version is complete.

    Only the main thread calls the methods, except `protect`. `draft` makes a draft of the state of `shard`. `memory`: the maximum
    number of bytes for copies; 0 means a quarter of the free memory. If the copies do not fit, no copies are made.
    """

    def __init__(self, shard: StateHandle, draft: Callable[[SnapshotMemory], Draft], memory: int) -> None:
        self._shard, self._make = shard, draft
        self._memory = SnapshotMemory(memory)
        self._draft: Draft | None = None
        self._version = -1
        self._facts: Mapping[str, object] = {}
        self._changed = False  # True if a group has been updated since that version

    def keep(self, version: int, facts: Mapping[str, object]) -> None:
        """Keep the complete version `version`. Call this while no group is open. `facts`: entries of the version's manifest."""
        self.close()
        self._version, self._facts, self._changed = version, facts, False
        if self._shard.runs_own_code and self._memory.holds(size_of(self._shard.memory())):
            self._draft = self._make(self._memory)

    def protect(self, group: int) -> None:
        """Copy the values of `group` before they change. The lanes (the threads that update groups) call this method."""
        self._changed = True
        if (draft := self._draft) is not None:
            draft.snapshot.protect(group)

    def untouched(self, version: int) -> Mapping[str, object] | None:
        """Return the facts of `version` if it is the kept version and no group has been updated since, otherwise None."""
        return self._facts if self._version == version and not self._changed else None

    def take(self) -> tuple[int, Draft, Mapping[str, object]] | None:
        """Return the kept version, its draft and its facts; None if no version can be saved. The draft is valid until `close`."""
        if self._draft is None and self._version >= 0 and not self._changed:
            self._draft = self._make(self._memory)
            if self._changed:  # a group has changed since, so the draft mixes two versions
                self.close()
        return None if self._draft is None else (self._version, self._draft, self._facts)

    def close(self) -> None:
        """Drop the kept version and its copies."""
        if self._draft is not None:
            self._draft.snapshot.close()
            self._draft = None
