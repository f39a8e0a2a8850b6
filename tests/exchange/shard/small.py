"""A shard of a small model, with nobody at the other end unless a link is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.exchange.shard.consistency import Rule, rule_of
from psnode.exchange.shard.shard import Shard
from psnode.plan.groups import Tensor, make_plan
from psnode.protocol.channel import FrameChannel
from psnode.records.timeline import Tracer
from psnode.transport.loopback import loopback_group


def small_shard(
    model: nn.Module,
    config: Config,
    rule: Rule | None = None,
    link: FrameChannel | None = None,
    rate: Callable[[int], float] = lambda version: 0.1,
    recipients: Sequence[int] = (),
    group_by: str = "model",
) -> Shard:
    """A shard of all groups of `model` under the scheme of `config`; by default with the rule of `config` for three workers."""
    scheme = resolve(config)
    tensors = [Tensor(name, tuple(value.shape)) for name, value in model.named_parameters()]
    plan = make_plan(tensors, scheme.codec, group_by=group_by, min_compress_bytes=0)  # type: ignore[arg-type]
    link = link or FrameChannel(loopback_group(1)[0])
    return Shard(
        plan, config, scheme, model, link, rule or rule_of(config, 3), rate, recipients, Tracer(link.rank, enabled=False)
    )
