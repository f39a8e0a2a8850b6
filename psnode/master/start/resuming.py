"""Events at the start of a run: an unexpected learning rate, changes that affect a resumed run, and state that it cannot use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from psnode.config.schedules import SHAPED
from psnode.errors import ConfigurationError
from psnode.master.events import Events
from psnode.master.example_dealing import ExampleDealing
from psnode.plans.groups import Plan
from psnode.records import state_names
from psnode.records.checkpoint import (
    CHECKPOINTS,
    FULL,
    LATEST,
    NONE,
    RESIDUALS,
    WAITING,
    Checkpoint,
    complete,
    step_of,
    worker_file,
)
from psnode.records.directory import ResumePoint, RunDirectory
from psnode.records.retention import why_unsound

_FLAG = "--checkpoint-residuals"


def tell_of_the_start(events: Events, run: RunDirectory, workers: range) -> None:
    """Report, as events, an unexpected learning rate and facts about the checkpoint from which the run is resumed.

    These are an unsound checkpoint, another number of threads or of workers, and memories of workers that are missing or
    rounded.
    """
    for note in run.notes:
        events.tell("learning rate", 0, reason=note)
    found = run.resume_point.checkpoint
    if found is not None:
        _tell_of_soundness(events, run, found)
        _tell_of_threads(events, run, found)
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
            f"the number of workers was {found.facts['workers']} and is {len(workers)} now: they share the rest of the epoch, "
            "and each begins with the mean of all memories",
        )
        return
    for rank in workers:
        if found is not None and not found.has(worker_file(rank)):
            events.tell("begins anew", found.step, rank, "the checkpoint holds no memories of it")


def tell_of_another_end(events: Events, run: RunDirectory, dealing: ExampleDealing) -> None:
    """Report that a resumed run has another last step than before, if its learning-rate schedule depends on the last step."""
    earlier, step = run.resume_point.config, run.resume_point.step
    if earlier is None or not step or run.config.lr_schedule not in SHAPED:
        return
    epochs = dealing.epochs
    before, now = (config.total_steps(epochs.steps, epochs.epoch_offset) for config in (earlier, run.config))
    if before == now or step >= now:
        return
    then = dealing.schedule_of(replace(earlier, lr=run.config.lr))
    events.tell(
        "another end",
        step,
        None,
        f"--max-steps or --epochs moves the end of --lr-schedule {run.config.lr_schedule} from step {before} to {now}: "
        f"the learning rate of step {step + 1} is {dealing.schedule(step):.4g}, as if that had been the end from the start; "
        f"that of step {step} was {then(step - 1):.4g}",
    )


def _tell_of_threads(events: Events, run: RunDirectory, found: Checkpoint) -> None:
    """Report that the number of threads has changed, since torch may then add the same numbers in a different order."""
    earlier = run.resume_point.config
    if earlier is not None and earlier.threads != run.config.threads:
        reason = f"--threads was {earlier.threads} and is {run.config.threads} now: the last bits of a sum may be others"
        events.tell("other threads", found.step, None, reason)


def _tell_of_soundness(events: Events, run: RunDirectory, found: Checkpoint) -> None:
    """Report an unsound checkpoint from which the run continues, and newer unsound checkpoints that the run skips."""
    if reason := why_unsound(found.path):
        events.tell("unsound", found.step, None, f"the run goes on from this checkpoint all the same: {reason}")
    for path in complete(run.path):
        if step_of(path) > found.step and (reason := why_unsound(path)):
            remedy = f"to go on from it after all stop, and write {path.name} into {path.with_name(LATEST)}"
            events.tell("passed over", found.step, None, f"the newer {path.name} is unsound: {reason}; {remedy}")


def require_same_model(resumed: ResumePoint, plan: Plan, tensors: Sequence[Sequence[Any]]) -> None:
    """Raise ConfigurationError if the run cannot continue with this model or plan.

    `tensors`: names and shapes of the model's trained tensors, which must equal those in `plan`. If gradients in a checkpoint
    still wait to be applied, the checkpoint must have been written with the same plan.
    """
    found = resumed.checkpoint
    if problem := plan.difference({name: tuple(shape) for name, shape in tensors}):
        raise ConfigurationError(
            f"the run had another model: {problem}; go on with the model that it was begun with, or begin another run"
        )
    if found is not None and found.has(WAITING) and not state_names.fits(found, plan):
        raise ConfigurationError(
            f"checkpoint {found.path} holds gradients that wait to be applied, coded by another plan{_why(resumed)}: leave that "
            f"setting as it was, or write the name of an older checkpoint into {CHECKPOINTS}/{LATEST} to resume from that"
        )


def tell_of_another_plan(events: Events, resumed: ResumePoint, plan: Plan) -> None:
    """Report that the checkpoint was written with another plan, and the state that cannot be used for this reason."""
    found = resumed.checkpoint
    if found is None or state_names.fits(found, plan):
        return
    books, norms = state_names.homeless(found, plan)
    lost = [f"codebooks of segments ({books})"] * bool(books) + [f"norms of groups ({norms})"] * bool(norms)
    left_out = f"; {' and '.join(lost)} are left out, since those are gone" if lost else ""
    events.tell(
        "replanned",
        found.step,
        reason=f"the checkpoint was written by another plan{_why(resumed)}: memories go on tensor by tensor{left_out}",
    )


def _why(resumed: ResumePoint) -> str:
    return f" ({'; '.join(resumed.changes)})" if resumed.changes else ""
