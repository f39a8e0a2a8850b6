"""Count of the gradients that a run has applied, where a version may stand for any number of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from psnode.exchange.shard.consistency import Rule
from psnode.records.checkpoint import Checkpoint


class Applied:
    """Counts gradients, each when the first of its groups is applied. `newest`: of every rank, the last step that was counted."""

    def __init__(self, gradients: int = 0, newest: Mapping[int, int] | None = None) -> None:
        self.gradients = gradients
        self._newest = dict(newest or {})

    def add(self, contributors: Iterable[tuple[int, int]]) -> None:
        """A version was made of gradients of `contributors`, each a rank and a step of its own."""
        for rank, step in sorted(contributors):
            if step > self._newest.get(rank, 0):
                self._newest[rank] = step
                self.gradients += 1

    def facts(self) -> dict[str, Any]:
        """Entries of a checkpoint's manifest."""
        return {"applied": {"gradients": self.gradients, "newest": {str(rank): step for rank, step in self._newest.items()}}}


def applied_before(rule: Rule, found: Checkpoint | None) -> Applied | None:
    """The gradients that the run has applied so far. None where every version stands for the same number.

    So do those of a run under ssp or asp whose checkpoint does not say it, since it was begun before they were counted.
    """
    if not rule.patient:
        return None
    if found is None:
        return Applied()
    facts = found.facts.get("applied")
    if facts is None:
        return None
    return Applied(int(facts["gradients"]), {int(rank): int(step) for rank, step in facts["newest"].items()})
