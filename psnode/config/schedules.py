"""Schedules: pure functions from a step to a value.

Step t is 0 for the first update of a run. The values here are learning rates; `staircase` also serves ratios.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from psnode.config import Config

Schedule = Callable[[int], float]


def constant(value: float) -> Schedule:
    """`value` at every step."""
    return lambda step: value


def shrink(value: float, factor: float, steps_per_epoch: int) -> Schedule:
    """`value` times `factor` for every finished epoch: ATOMO's and ps_pytorch's --lr-shrinkage."""
    return lambda step: value * factor ** (step // steps_per_epoch)


def multistep(value: float, factor: float, milestones: Sequence[int]) -> Schedule:
    """`value` times `factor` for every milestone (a step, rising) that is reached."""
    return lambda step: value * factor ** bisect.bisect_right(milestones, step)


def cosine(value: float, total_steps: int) -> Schedule:
    """Half a cosine from `value` to 0 over `total_steps` (Loshchilov & Hutter, SGDR, ICLR 2017, eq. 5, one period)."""
    return lambda step: value * (1 + math.cos(math.pi * min(step, total_steps) / total_steps)) / 2


def poly(value: float, power: float, total_steps: int) -> Schedule:
    """`value` (1 - t/total)^power; 0 from `total_steps` on."""
    return lambda step: value * (1 - min(step, total_steps) / total_steps) ** power


def warmup(schedule: Schedule, steps: int, shift: int = 0) -> Schedule:
    """`schedule` times (t+1+shift)/steps while that is below 1 (Goyal et al., arXiv:1706.02677, 2.2).

    Epochs keep their meaning: a milestone is not moved by the warm-up in front of it.
    """
    return lambda step: schedule(step) * min(1.0, (step + shift + 1) / steps) if steps else schedule(step)


def moved(schedule: Schedule, shift: int) -> Schedule:
    """`schedule` as it is `shift` steps later."""
    return lambda step: schedule(step + shift)


def staircase(values: Sequence[float], steps_per_value: int) -> Schedule:
    """Each of `values` for `steps_per_value` steps, the last one for ever: DGC's sparsity warm-up."""
    return lambda step: values[min(step // steps_per_value, len(values) - 1)]


def _lr(config: Config) -> float:
    if config.lr is None:
        raise TypeError("the learning rate is not resolved: see psnode.records.directory.claim")
    return config.lr


def _constant(config: Config, steps_per_epoch: int, shift: int) -> Schedule:
    return constant(_lr(config))


def _shrink(config: Config, steps_per_epoch: int, shift: int) -> Schedule:
    return moved(shrink(_lr(config), config.lr_shrinkage, steps_per_epoch), shift)


def _multistep(config: Config, steps_per_epoch: int, shift: int) -> Schedule:
    milestones = [epoch * steps_per_epoch for epoch in config.lr_milestones]
    return moved(multistep(_lr(config), config.lr_gamma, milestones), shift)


def _cosine(config: Config, steps_per_epoch: int, shift: int) -> Schedule:
    total, shift = _end(config, steps_per_epoch, shift)
    return moved(cosine(_lr(config), total), shift)


def _poly(config: Config, steps_per_epoch: int, shift: int) -> Schedule:
    total, shift = _end(config, steps_per_epoch, shift)
    return moved(poly(_lr(config), config.lr_power, total), shift)


def _end(config: Config, steps_per_epoch: int, shift: int) -> tuple[int, int]:
    """End of a schedule that ends with the run, and its shift: one that ends after so many steps counts steps, not epochs."""
    total = config.total_steps(steps_per_epoch, shift)
    return (total, 0) if total == config.max_steps else (total + shift, shift)


SCHEDULES: Mapping[str, Callable[[Config, int, int], Schedule]] = MappingProxyType(
    {"constant": _constant, "shrink": _shrink, "multistep": _multistep, "cosine": _cosine, "poly": _poly}
)


def learning_rate(config: Config, steps_per_epoch: int, shift: int = 0) -> Schedule:
    """The learning rate that `config` asks for, warm-up included, at each step of epochs `steps_per_epoch` long.

    After t steps (t + shift) / steps_per_epoch epochs are over (psnode.records.generations).
    """
    schedule = SCHEDULES[config.lr_schedule](config, steps_per_epoch, shift)
    return warmup(schedule, round(config.warmup_epochs * steps_per_epoch), shift)
