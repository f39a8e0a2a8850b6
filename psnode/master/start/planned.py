"""The plan of a run, which comes from the run's record, from a file, from trial steps, or from the rule."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from psnode.config import Config
from psnode.config.amounts import milliseconds
from psnode.config.schemes import SETTINGS
from psnode.config.train_settings import BY_RULE, BY_TRIAL, UNDECIDED
from psnode.errors import ConfigurationError
from psnode.exchange.compilation import prepare
from psnode.exchange.expected import step_bytes
from psnode.exchange.footprint import footprint
from psnode.exchange.routes.topologies import is_plain
from psnode.exchange.shard.consistency import rule_of
from psnode.master.events import Events
from psnode.master.example_dealing import ExampleDealing
from psnode.master.heartbeat import Heartbeat
from psnode.master.start.autotune import group_bytes_for
from psnode.master.start.choice import Candidate, candidates, choose, ddp_line
from psnode.master.start.startup import plan_for, raise_if_stopped, require_memory
from psnode.master.start.trial_run import TrialRun
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan
from psnode.plans.plan_file import PlanFile
from psnode.plans.prediction import Prediction
from psnode.plans.roles import MASTER
from psnode.plans.rule import DEFAULT_GROUP_BYTES
from psnode.protocol.channel import FrameChannel
from psnode.protocol.link_rates import measure_links
from psnode.protocol.messages import Ready
from psnode.records.directory import RunDirectory, saved_config


def with_plan(config: Config) -> Config:
    """Return `config` with the settings of its plan.

    For a resumed run these are the recorded settings, otherwise the settings in the file of --plan. A resumed run also keeps
    its topology if --topology is auto. Raises ConfigurationError if there is no such file, or if it contradicts other
    settings.
    """
    if config.resume and config.topology == UNDECIDED:
        config = replace(config, topology=saved_config(config.directory.resolve()).topology)
    if config.plan == BY_RULE:
        return config
    if config.resume and (earlier := saved_config(config.directory.resolve())).plan == config.plan:
        topology = earlier.topology if config.topology == Config().topology else config.topology
        return replace(config, topology=topology, **{name: getattr(earlier, name) for name in SETTINGS})
    return config if config.plan == BY_TRIAL else PlanFile.load(Path(config.plan)).applied(config)


def planned(
    link: FrameChannel,
    run: RunDirectory,
    model: torch.nn.Module,
    ready: Mapping[int, Ready],
    dealing: ExampleDealing,
    events: Events,
) -> tuple[RunDirectory, Plan]:
    """Return the run and its plan. `ready`: the READY message of every worker.

    A resumed run has its recorded plan, unless settings that determine plans have changed. Otherwise the plan comes from the
    file of --plan, or the rule makes it with the group size that `group_bytes_for` returns.
    """
    if run.resume_point.plan is not None:
        return run, run.resume_point.plan
    if run.config.plan not in (BY_RULE, BY_TRIAL):
        return _of_file(run, ready, events)
    if run.config.plan == BY_TRIAL:
        run = _by_trial(link, run, model, ready, dealing, events)
    size = group_bytes_for(
        link, run.config, run.scheme, model, ready,
        steps=dealing.last_step, epoch=dealing.epochs.steps, lr=dealing.schedule(0),
        tell=lambda reason: events.tell("calibrated", 0, reason=reason),
    )  # fmt: skip
    tried = run.config.plan == BY_TRIAL  # with groups of the usual size
    if tried and size not in (run.config.group_bytes, DEFAULT_GROUP_BYTES):
        run = replace(run, prediction=None)
    run = replace(run, config=replace(run.config, group_bytes=size))
    return run, plan_for(ready[min(ready)], run.scheme, run.config)


def _by_trial(
    link: FrameChannel,
    run: RunDirectory,
    model: torch.nn.Module,
    ready: Mapping[int, Ready],
    dealing: ExampleDealing,
    events: Events,
) -> RunDirectory:
    """Return the run with the scheme that is fastest in trial steps (psnode.master.start.choice)."""
    if reason := _no_choice(run, ready):
        events.tell("planned", run.resume_point.step, reason=f"the scheme stays: {reason}")
        return run
    answer, workers = ready[min(ready)], len(ready)

    def coding(each: Candidate) -> Coding:
        return Coding(plan_for(answer, each.scheme, each.config), each.scheme)

    def trial(each: Candidate) -> float:
        raise_if_stopped(link, run)
        prepare(made := coding(each), each.config)
        return TrialRun(link, each.config, each.scheme, model, made.plan, ready).run(dealing.epochs.steps, dealing.schedule(0))

    found, left_out = list[Candidate](), list[str]()
    for each in candidates(run.config, run.scheme):
        try:
            if run.config.memory_check and found:  # the memory of the run's own scheme has been checked
                require_memory(footprint(coding(each), each.config, workers), ready)
        except ConfigurationError:
            left_out.append(each.name)
            continue
        up, down = step_bytes(coding(each))
        found.append(replace(each, up=up, down=down))
    # while links are measured and workers take long steps, other ranks receive nothing but this heartbeat
    with contextlib.closing(Heartbeat(link, range(MASTER + 1, link.transport.size))):
        links = measure_links(link, sorted(ready), 5 * run.config.pause_deadline)
        choice = choose(found, links, workers, trial)
    raise_if_stopped(link, run)
    nbytes = 4 * sum(math.prod(shape) for _, shape in answer.tensors)
    lines = [*choice.told, ddp_line(nbytes, links, workers, choice.seconds)]
    for line in [*lines, *(f"{name} was not tried: there is too little memory for it" for name in left_out)]:
        events.tell("planned", 0, reason=line)
    # trial steps wait for all workers
    prediction = None if rule_of(run.config, workers).rounds_go_on else Prediction(choice.seconds, workers, "trial steps")
    return replace(run, config=choice.candidate.config, scheme=choice.candidate.scheme, prediction=prediction, links=links)


def _no_choice(run: RunDirectory, ready: Mapping[int, Ready]) -> str:
    """Return the reason why trial steps cannot choose the scheme; empty if they can."""
    if run.resume_point.config is not None:
        return "a resumed run keeps it"
    if run.config.local is not None:
        return "the workers of --local have no links, and take turns"
    if any(answer.streams for answer in ready.values()):
        return "trial steps would take examples from an iterable data set"
    return ""


def _of_file(run: RunDirectory, ready: Mapping[int, Ready], events: Events) -> tuple[RunDirectory, Plan]:
    found = PlanFile.load(Path(run.config.plan))
    coding = found.coding(run.config, {name: tuple(shape) for name, shape in ready[min(ready)].tensors})
    if run.config.memory_check:
        require_memory(footprint(coding, run.config, len(ready)), ready)
    prepare(coding, run.config)
    prediction = found.prediction
    topology = run.config.topology
    alike = topology == found.topology or (is_plain(topology) and is_plain(found.topology))
    if prediction is not None and (prediction.workers != len(ready) or not alike):
        under = "" if alike else f" under --topology {topology}"
        reason = f"{run.config.plan} predicts steps of {prediction.workers} workers, not of {len(ready)}{under}"
        events.tell("planned", run.resume_point.step, reason=f"{reason}: its prediction is left out")
        prediction = None
    elif prediction is not None:
        events.tell("planned", run.resume_point.step, reason=f"a step is to take {milliseconds(prediction.step)}")
    # a run that is resumed by the rule needs a group size, since the record of every other run has one
    config = replace(run.config, group_bytes=DEFAULT_GROUP_BYTES) if run.config.group_by == "bytes" else run.config
    return replace(run, config=config, prediction=prediction), found.plan
