"""The command `psnode train --dry-run`: plan, bytes and memory of a job that is not started."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from psnode.config import Config
from psnode.config.amounts import amount, counted
from psnode.config.coding_name import coding_name
from psnode.config.resolve import resolve
from psnode.config.train_settings import BY_RULE, BY_TRIAL
from psnode.exchange.expected import step_bytes
from psnode.exchange.flat_model import describe
from psnode.exchange.footprint import Use, footprint
from psnode.exchange.routes.refusals import refuse_other_roots, require_decided
from psnode.exchange.routes.topologies import group_bytes_of, sent_in_a_step
from psnode.master.start.planned import with_plan
from psnode.plans.coding import Coding
from psnode.plans.plan_file import PlanFile
from psnode.plans.rule import plan_of
from psnode.tasks import model_tensors
from psnode.tasks.loading import make_task
from psnode.tasks.optimizers import require_optimizer


def dry_run(config: Config, workers: int) -> str:
    """Return a description of the job that `config` defines with this number of workers.

    Raises ConfigurationError if the settings, the model or the plan file cannot be used.
    """
    import torch

    require_decided(config, "--dry-run")
    config = with_plan(config)
    scheme = resolve(config)
    task = make_task(config)
    require_optimizer(config, own=task.own_optimizer is not None)
    refuse_other_roots(config, scheme.aggregator, constrains=task.constrains, downlink=scheme.downlink)
    torch.manual_seed(config.seed)
    model = task.model()
    model_tensors.check(model, task.statistics(model))
    tensors = describe(model)
    if config.plan in (BY_RULE, BY_TRIAL):
        if config.group_by == "bytes" and not config.group_bytes:
            whole = 4 * sum(tensor.size for tensor in tensors)
            config = replace(config, group_bytes=group_bytes_of(config.topology, whole, workers))
        coding = Coding(plan_of(tensors, scheme, config), scheme)
    else:
        coding = PlanFile.load(Path(config.plan)).coding(config, {tensor.name: tensor.shape for tensor in tensors})
    return "\n".join(_lines(coding, config, workers)) + "\n"


def _lines(coding: Coding, config: Config, workers: int) -> Iterator[str]:
    plan, scheme = coding.plan, coding.scheme
    up, down = (nbytes / workers for nbytes in sent_in_a_step(config.topology, workers, *step_bytes(coding)))
    need = footprint(coding, config, workers)
    parts = f"{counted(len(plan.segments), 'segment')}, {counted(len(plan.groups), 'group')}"
    yield f"model      {counted(plan.size, 'parameter')} to train, {amount(need.vector)}; {parts}"
    name = coding_name(scheme.name, scheme.codec, replaced=bool(config.codec))
    sent = scheme.downlink if config.sends_weights else "none"
    coded = f"scheme     {name}: up {scheme.codec}, feedback {scheme.feedback}, down {sent}"
    yield from textwrap.wrap(coded, 80, subsequent_indent=" " * 11, break_long_words=False)
    weights = amount(down) if down else "nothing"
    yield f"a step     about {amount(up)} up and {weights} down per worker; float32 {amount(need.vector)} each"
    for role, uses, total in (
        ("master", need.master, need.master_bytes),
        (f"each of {counted(workers, 'worker')}", need.worker, need.worker_bytes),
        *([(f"each of {counted(config.servers, 'server')}", need.server, need.server_bytes)] if config.servers else []),
    ):
        yield ""
        yield from _table(f"memory of the {role}" if role == "master" else f"memory of {role}", uses, total, need.vector)
    yield ""
    yield "Libraries, data, activations and a checkpoint being written are not included."


def _table(title: str, uses: Sequence[Use], total: float, vector: int) -> Iterator[str]:
    yield f"{title:44}{'floats a parameter':>18}{'bytes':>12}"
    for use in (*uses, Use("all", total)):
        yield f"  {use.purpose:42}{use.nbytes / max(vector, 1):>18.2f}{amount(use.nbytes):>12}"
