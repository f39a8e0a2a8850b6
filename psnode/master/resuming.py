"""Events at the start of a run: its learning rate, and the state that a resumed run does not continue."""

from __future__ import annotations

from psnode.master.events import Events
from psnode.records.checkpoint import FULL, LATEST, NONE, RESIDUALS, Checkpoint, complete, step_of, worker_file
from psnode.records.directory import RunDirectory
from psnode.records.retention import why_unsound

_FLAG = "--checkpoint-residuals"


def tell_of_the_start(events: Events, run: RunDirectory, workers: range) -> None:
    """Tell the user of an unexpected learning rate, and of state that a resumed run does not continue."""
    for note in run.notes:
        events.tell("learning rate", 0, reason=note)
    found = run.resume_point.checkpoint
    if found is not None:
        _tell_of_soundness(events, run, found)
    if found is not None and (kept := found.facts.get(RESIDUALS, FULL)) != FULL:
        how = "are empty: what they held is lost" if kept == NONE else "are rounded to bfloat16"
        events.tell(
            "begins anew" if kept == NONE else "rounded", found.step, None, f"the workers' memories {how} ({_FLAG} {kept})"
        )
    if found is not None and run.resume_point.resharded(len(workers)):
        events.tell(
            "resharded",
            found.step,
            None,
            f"{found.facts['workers']} workers wrote the checkpoint, {len(workers)} go on: the rest of the epoch is dealt "
            "among them, and each begins with the mean of all memories",
        )
        return
    for rank in workers:
        if found is not None and not found.has(worker_file(rank)):
            events.tell("begins anew", found.step, rank, "the checkpoint holds no memories of it")


def _tell_of_soundness(events: Events, run: RunDirectory, found: Checkpoint) -> None:
    """An unsound checkpoint that a resumed run goes on from, and newer ones that it passes over."""
    if reason := why_unsound(found.path):
        events.tell("unsound", found.step, None, f"the run goes on from this checkpoint all the same: {reason}")
    for path in complete(run.path):
        if step_of(path) > found.step and (reason := why_unsound(path)):
            remedy = f"to go on from it after all stop, and write {path.name} into {path.with_name(LATEST)}"
            events.tell("passed over", found.step, None, f"the newer {path.name} is unsound: {reason}; {remedy}")
