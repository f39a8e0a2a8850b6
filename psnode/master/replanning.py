"""Resuming a checkpoint that was written by another plan: state that stays where it was, and state that has no place."""

from __future__ import annotations

from psnode.errors import ConfigurationError
from psnode.master.events import Events
from psnode.plan.groups import Plan
from psnode.records import layout
from psnode.records.checkpoint import CHECKPOINTS, LATEST, WAITING
from psnode.records.directory import ResumePoint


def check(resumed: ResumePoint, plan: Plan) -> None:
    """ConfigurationError if gradients wait in the checkpoint that are coded in groups of another plan."""
    found = resumed.checkpoint
    if found is not None and found.has(WAITING) and not layout.fits(found, plan):
        raise ConfigurationError(
            f"checkpoint {found.path} holds gradients that wait to be applied, coded by another plan{_why(resumed)}: leave that "
            f"setting as it was, or write the name of an older checkpoint into {CHECKPOINTS}/{LATEST} to resume from that"
        )


def tell(events: Events, resumed: ResumePoint, plan: Plan) -> None:
    """One event if the checkpoint was written by another plan, with the state that is left out."""
    found = resumed.checkpoint
    if found is None or layout.fits(found, plan):
        return
    books, norms = layout.homeless(found, plan)
    lost = [f"codebooks of segments ({books})"] * bool(books) + [f"norms of groups ({norms})"] * bool(norms)
    left_out = f"; {' and '.join(lost)} are left out, since those are gone" if lost else ""
    events.tell(
        "replanned",
        found.step,
        reason=f"the checkpoint was written by another plan{_why(resumed)}: memories go on tensor by tensor{left_out}",
    )


def _why(resumed: ResumePoint) -> str:
    return f" ({'; '.join(resumed.changes)})" if resumed.changes else ""
