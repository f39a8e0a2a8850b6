"""A shard of a small model, without peers unless a link is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.exchange.routes.route import Route
from psnode.exchange.shard.consistency import Rule, rule_of
from psnode.exchange.shard.shard import Shard
from psnode.exchange.update.served_model import ServedModel
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan, Tensor
from psnode.plans.rule import make_plan
from psnode.protocol.channel import FrameChannel
from psnode.protocol.round import Round
from psnode.records.timeline import Tracer
from psnode.transport.loopback import loopback_group


def small_plan(model: nn.Module, config: Config, group_by: str = "model") -> Plan:
    """Return the plan that `small_shard` uses."""
    tensors = [Tensor(name, tuple(value.shape)) for name, value in model.named_parameters()]
    return make_plan(tensors, resolve(config).codec, group_by=group_by, min_compress_bytes=0)  # type: ignore[arg-type]


def small_shard(
    model: nn.Module,
    config: Config,
    rule: Rule | None = None,
    link: FrameChannel | None = None,
    rate: Callable[[Round], float] = lambda now: 0.1,
    recipients: Sequence[int] = (),
    group_by: str = "model",
    route: Route | None = None,
) -> Shard:
    """Return a shard of all groups of `model` under `config`. The default `rule` is the consistency rule of `config` for
    three workers.

    `route` is the route of each group, by default straight to `recipients`.
    """
    plan, link = small_plan(model, config, group_by), link or FrameChannel(loopback_group(1)[0])
    weights = ServedModel(model, plan, torch.empty(plan.size))
    return Shard(
        Coding(plan, resolve(config)), range(len(plan.groups)), config, weights, link, rule or rule_of(config, 3), rate,
        [route or Route(link.rank, recipients) for _ in plan.groups],
        Tracer(link.rank, enabled=False),
    )  # fmt: skip
