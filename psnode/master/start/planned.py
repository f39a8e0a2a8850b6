"""The plan of a run: that of its record, of a file, of trial steps, or of the rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from psnode.config import Config
from psnode.config.amounts import milliseconds
from psnode.config.schemes import SETTINGS
from psnode.config.train_settings import BY_RULE, BY_TRIAL
from psnode.exchange.compilation import prepare
from psnode.exchange.expected import step_bytes
from psnode.master.events import Events
from psnode.master.sharding import Sharding
from psnode.master.start.autotune import group_bytes_for
from psnode.master.start.choice import Candidate, candidates, choose, ddp_line
from psnode.master.start.startup import plan_for
from psnode.master.start.trial_run import TrialRun
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan
from psnode.plans.plan_file import PlanFile
from psnode.plans.prediction import Prediction
from psnode.protocol.channel import FrameChannel
from psnode.protocol.link_rates import measure_links
from psnode.protocol.messages import Ready
from psnode.records.directory import RunDirectory, saved_config


def with_plan(config: Config) -> Config:
    """Return `config` with the settings of its plan: those that a resumed run began with, or those in the file of --plan.

    Raises ConfigurationError if there is no such file, or if it contradicts other settings.
    """
    if config.plan == BY_RULE:
        return config
    if config.resume and (earlier := saved_config(config.directory.resolve())).plan == config.plan:
        return replace(config, **{name: getattr(earlier, name) for name in SETTINGS})
    return config if config.plan == BY_TRIAL else PlanFile.load(Path(config.plan)).applied(config)


def planned(
    link: FrameChannel,
    run: RunDirectory,
    model: torch.nn.Module,
    ready: Mapping[int, Ready],
    sharding: Sharding,
    events: Events,
) -> tuple[RunDirectory, Plan]:
    """Return the run and its plan. `ready`: the READY message of every worker.

    A resumed run has its recorded plan, unless settings of plans have changed. Without a plan in a file, the group size is set to
    the fastest one in trial runs.
    """
    if run.resume_point.plan is not None:
        return run, run.resume_point.plan
    if run.config.plan not in (BY_RULE, BY_TRIAL):
        return _of_file(run, ready, events)
    if run.config.plan == BY_TRIAL:
        run = _by_trial(link, run, model, ready, sharding, events)
    size = group_bytes_for(
        link, run.config, run.scheme, model, ready,
        steps=sharding.last_step, epoch=sharding.epochs.steps, lr=sharding.schedule(0),
        tell=lambda reason: events.tell("calibrated", 0, reason=reason),
    )  # fmt: skip
    run = replace(run, config=replace(run.config, group_bytes=size))
    return run, plan_for(ready[min(ready)], run.scheme, run.config)


def _by_trial(
    link: FrameChannel,
    run: RunDirectory,
    model: torch.nn.Module,
    ready: Mapping[int, Ready],
    sharding: Sharding,
    events: Events,
) -> RunDirectory:
    """Return the run with the scheme that is fastest in trial steps (psnode.master.start.choice)."""
    if run.config.local is not None:
        events.tell("planned", 0, reason="the scheme stays: the workers of --local have no links, and take turns")
        return run
    answer, workers = ready[min(ready)], len(ready)
    links = measure_links(link, sorted(ready), run.config.pause_deadline)

    def priced(each: Candidate) -> Candidate:
        up, down = step_bytes(Coding(plan_for(answer, each.scheme, each.config), each.scheme))
        return replace(each, up=up, down=down)

    def trial(each: Candidate) -> float:
        plan = plan_for(answer, each.scheme, each.config)
        return TrialRun(link, each.config, each.scheme, model, plan, ready).run(sharding.epochs.steps, sharding.schedule(0))

    choice = choose([priced(each) for each in candidates(run.config, run.scheme)], links, workers, trial)
    nbytes = 4 * sum(math.prod(shape) for _, shape in answer.tensors)
    for line in (*choice.told, ddp_line(nbytes, links, workers, choice.seconds)):
        events.tell("planned", 0, reason=line)
    prediction = Prediction(choice.seconds, workers, "trial steps")
    return replace(run, config=choice.candidate.config, scheme=choice.candidate.scheme, prediction=prediction)


def _of_file(run: RunDirectory, ready: Mapping[int, Ready], events: Events) -> tuple[RunDirectory, Plan]:
    found = PlanFile.load(Path(run.config.plan))
    coding = found.coding(run.config, {name: tuple(shape) for name, shape in ready[min(ready)].tensors})
    prepare(coding, run.config)
    prediction = found.prediction
    if prediction is not None and prediction.workers != len(ready):
        reason = f"{run.config.plan} predicts steps of {prediction.workers} workers, not of {len(ready)}"
        events.tell("planned", run.resume_point.step, reason=f"{reason}: its prediction is left out")
        prediction = None
    elif prediction is not None:
        events.tell("planned", run.resume_point.step, reason=f"a step is to take {milliseconds(prediction.step)}")
    return replace(run, prediction=prediction), found.plan
