"""Resuming a checkpoint that was written by another plan: state that stays where it was, and state that has no place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psnode.errors import ConfigurationError
from psnode.master.events import Events
from psnode.plan.groups import Plan
from psnode.records import layout
from psnode.records.checkpoint import CHECKPOINTS, LATEST, WAITING
from psnode.records.directory import ResumePoint


def check(resumed: ResumePoint, plan: Plan, tensors: Sequence[Sequence[Any]]) -> None:
    """ConfigurationError if the run had another model than the one whose trained `tensors` these are, names and shapes, or if
    gradients wait in the checkpoint that are coded in groups of another plan.
    """
    found = resumed.checkpoint
    if problem := _difference({t.name: t.shape for t in plan.tensors}, {name: tuple(shape) for name, shape in tensors}):
        raise ConfigurationError(
            f"the run had another model: {problem}; go on with the model that it was begun with, or begin another run"
        )
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


def _difference(before: Mapping[str, tuple[int, ...]], now: Mapping[str, tuple[int, ...]]) -> str:
    """The first tensor that differs, in words; empty if none does."""
    for name in (*before, *now):
        if name not in now:
            return f"{name} is trained there and not now"
        if name not in before:
            return f"{name} is trained now and not there"
        if before[name] != now[name]:
            return f"{name} is of shape {before[name]} there and {now[name]} now"
    return ""


def _why(resumed: ResumePoint) -> str:
    return f" ({'; '.join(resumed.changes)})" if resumed.changes else ""
