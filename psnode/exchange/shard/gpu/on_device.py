"""A shard's arithmetic on a device: the settings under which this is possible, and the construction of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from psnode.codecs import Codec
from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.exchange.device.placing import Changes, Encoders, changes_on, encoders_on
from psnode.exchange.shard.aggregator import Aggregator, Mean
from psnode.exchange.shard.downlink import Downlink
from psnode.exchange.shard.gpu.device_arithmetic import DeviceArithmetic
from psnode.exchange.shard.gpu.device_mover import DeviceMover
from psnode.exchange.update.device_copies import DeviceCopies, told
from psnode.exchange.update.device_steps import checked_steps
from psnode.exchange.update.parameters import Parameters
from psnode.plans.groups import Plan


class OnDevice(NamedTuple):
    """Arithmetic of a shard on a device. `on_host`: lines about the codecs that still run on the host."""

    device_copies: DeviceCopies
    arithmetic: DeviceArithmetic
    mover: DeviceMover
    on_host: list[str]


def _refusal(config: Config, aggregator: Aggregator, parameters: Parameters, downlink: Downlink, constrained: bool) -> str:
    """Return the reason why all of the shard's arithmetic stays on the host; empty if there is no reason."""
    if not parameters.in_one_pass:
        return f"the optimizer {config.optimizer} is torch's or the task's; sgd, adam and adamw have kernels"
    if not isinstance(aggregator, Mean):
        return "a majority vote is counted there"
    if constrained:
        return "the task's constraint is put on the model there"
    if downlink.lead:
        return "the weights that changes lead to are computed there (--downlink-lead; 0 turns it off)"
    if config.ema_decay is not None:
        return "the moving average of the weights is kept there (--ema-decay)"
    return ""


def _of(plan: Plan, codecs: Sequence[Codec]) -> list[Codec]:
    """Return the codecs of the segments of `plan`, which may be a part of a plan. `codecs`: the codecs of the whole plan."""
    return [codecs[segment.index] for segment in plan.segments]


@told
def place(
    plan: Plan,
    config: Config,
    codecs: Sequence[Codec],
    aggregator: Aggregator,
    parameters: Parameters,
    downlink: Downlink,
    device: torch.device,
    *,
    constrained: bool,
) -> OnDevice | str:
    """Put the arithmetic of a shard on `device`, or return one line that says why it stays on the host.

    `codecs`: by segment, the codec of pushes. `constrained`: True if the task constrains the weights. Work for which the
    device's result would differ from the host's stays on the host. Raises DeviceError if the device has too little memory.
    """
    if reason := _refusal(config, aggregator, parameters, downlink, constrained):
        return reason
    assert isinstance(aggregator, Mean)
    try:
        steps, problem = checked_steps(device)
        if steps is None:
            return problem
        device_copies = DeviceCopies([*parameters.vectors, downlink.home], device)
        total = torch.zeros(plan.size, device=device)
        ups = changes_on(plan, _of(plan, codecs), total)
        there = device_copies.of(downlink.home)
        downs, encoders = Changes({}, []), Encoders({}, [])
        if downlink.codecs is not None:
            down = _of(plan, downlink.codecs)
            downs, encoders = changes_on(plan, down, there), encoders_on(plan, down, device)
    except ConfigurationError as error:  # CuPy is absent
        return str(error)
    parameters.move_to(steps, device_copies)
    lines = [
        *(f"pushes: {verdict.line}" for verdict in ups.verdicts if verdict.problem),
        *(f"changes of weights: {verdict.line}" for verdict in (*downs.verdicts, *encoders.verdicts) if verdict.problem),
    ]
    return OnDevice(
        device_copies,
        DeviceArithmetic(plan, codecs, aggregator, parameters, total, ups.by_segment),
        DeviceMover(device_copies.of(parameters.weights), there, encoders.by_segment, downs.by_segment),
        list(dict.fromkeys(lines)),
    )
