"""Schedules: pure functions from a step to a value, usually a learning rate. `staircase` is also used for ratios.

Step t is 0 for the first update of a run. A schedule that ends with the run falls to its end value, which is `end` times
`value`.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from psnode.config import Config
from psnode.errors import ConfigurationError

Schedule = Callable[[int], float]


def constant(value: float) -> Schedule:
    """Return the schedule that has `value` at every step."""
    return lambda step: value


def shrink(value: float, factor: float, steps_per_epoch: int) -> Schedule:
    """Return the schedule that multiplies `value` by `factor` after every epoch: --lr-shrinkage of ATOMO and ps_pytorch."""
    return lambda step: value * factor ** (step // steps_per_epoch)


def multistep(value: float, factor: float, milestones: Sequence[int]) -> Schedule:
    """Return the schedule that multiplies `value` by `factor` at every milestone. `milestones`: steps, ascending."""
    return lambda step: value * factor ** bisect.bisect_right(milestones, step)


def cosine(value: float, total_steps: int, end: float = 0.0) -> Schedule:
    """Return the schedule that falls from `value` to its end value along half a cosine over `total_steps`.

    Loshchilov & Hutter, SGDR, ICLR 2017, eq. 5, one period.
    """
    fall = value if not end else value * (1 - end)
    return lambda step: value * end + fall * (1 + math.cos(math.pi * min(step, total_steps) / total_steps)) / 2


def poly(value: float, power: float, total_steps: int, end: float = 0.0) -> Schedule:
    """Return the schedule that falls from `value` to its end value like (1 - t/total_steps)^power, and then stays constant."""
    return lambda step: value * end + value * (1 - end) * (1 - min(step, total_steps) / total_steps) ** power


def wsd(value: float, decay_steps: int, total_steps: int, end: float = 0.0) -> Schedule:
    """Return the schedule that stays at `value`, then falls linearly to its end value over the last `decay_steps`.

    Hu et al., MiniCPM, arXiv:2404.06395, section 4.
    """
    decay_steps = max(1, min(decay_steps, total_steps))
    return lambda step: value * (1 - (1 - end) * min(1.0, max(0, step - total_steps + decay_steps) / decay_steps))


def onecycle(value: float, total_steps: int, peak: float, start: float, end: float = 0.0) -> Schedule:
    """Return the schedule that rises to `value` and then falls to its end value, both along half a cosine.

    It begins at `start` times `value`, reaches `value` after the fraction `peak` of the steps, and its end value at the last
    step. Steps are counted as in torch.optim.lr_scheduler.OneCycleLR. Smith and Topin, "Super-convergence",
    arXiv:1708.07120.
    """
    top, last = max(0.0, peak * total_steps - 1), total_steps - 1

    def rate(step: int) -> float:
        if step < top:
            return _annealed(value * start, value, step / top)
        return _annealed(value, value * end, min(1.0, (step - top) / (last - top)) if last > top else 0.0)

    return rate


def _annealed(first: float, last: float, part: float) -> float:
    """Return the value after the fraction `part` of half a cosine from `first` to `last`."""
    return last + (first - last) / 2 * (1 + math.cos(math.pi * part))


def warmup(schedule: Schedule, steps: int, epoch_offset: int = 0) -> Schedule:
    """Return `schedule`, multiplied at step t by (t + 1 + epoch_offset) / steps as long as this factor is below 1.

    Goyal et al., arXiv:1706.02677, 2.2. The warm-up does not move milestones, which stay at their epochs.
    """
    return lambda step: schedule(step) * min(1.0, (step + epoch_offset + 1) / steps) if steps else schedule(step)


def moved(schedule: Schedule, steps: int) -> Schedule:
    """Return `schedule` shifted to begin `steps` steps earlier."""
    return lambda step: schedule(step + steps)


def staircase(values: Sequence[float], steps_per_value: int) -> Schedule:
    """Return the schedule that has each of `values` for `steps_per_value` steps, as in DGC's warm-up, and then keeps the last."""
    return lambda step: values[min(step // steps_per_value, len(values) - 1)]


def _lr(config: Config) -> float:
    if config.lr is None:
        raise TypeError("the learning rate is not resolved: see psnode.records.directory.claim")
    return config.lr


def _constant(config: Config, steps_per_epoch: int, epoch_offset: int) -> Schedule:
    return constant(_lr(config))


def _shrink(config: Config, steps_per_epoch: int, epoch_offset: int) -> Schedule:
    if config.lr_shrink_steps is not None:
        return shrink(_lr(config), config.lr_shrinkage, config.lr_shrink_steps)
    return moved(shrink(_lr(config), config.lr_shrinkage, steps_per_epoch), epoch_offset)


def _multistep(config: Config, steps_per_epoch: int, epoch_offset: int) -> Schedule:
    if config.lr_milestone_steps:
        return multistep(_lr(config), config.lr_gamma, config.lr_milestone_steps)
    milestones = [epoch * steps_per_epoch for epoch in config.lr_milestones]
    return moved(multistep(_lr(config), config.lr_gamma, milestones), epoch_offset)


def _cosine(config: Config, steps_per_epoch: int, epoch_offset: int) -> Schedule:
    total, epoch_offset = _end(config, steps_per_epoch, epoch_offset)
    return moved(cosine(_lr(config), total, config.lr_end_factor), epoch_offset)


def _poly(config: Config, steps_per_epoch: int, epoch_offset: int) -> Schedule:
    total, epoch_offset = _end(config, steps_per_epoch, epoch_offset)
    return moved(poly(_lr(config), config.lr_power, total, config.lr_end_factor), epoch_offset)


def _wsd(config: Config, steps_per_epoch: int, epoch_offset: int) -> Schedule:
    total, epoch_offset = _end(config, steps_per_epoch, epoch_offset)
    decay = config.lr_decay_steps
    if decay is None:
        decay = round(0.1 * total if config.lr_decay_epochs is None else config.lr_decay_epochs * steps_per_epoch)
    return moved(wsd(_lr(config), decay, total, config.lr_end_factor), epoch_offset)


def _onecycle(config: Config, steps_per_epoch: int, epoch_offset: int) -> Schedule:
    total, epoch_offset = _end(config, steps_per_epoch, epoch_offset)
    return moved(onecycle(_lr(config), total, config.lr_peak, config.lr_start_factor, config.lr_end_factor), epoch_offset)


def _end(config: Config, steps_per_epoch: int, epoch_offset: int) -> tuple[int, int]:
    """Return the last step of a schedule that ends with the run, and the schedule's offset in steps.

    The offset is 0 if --max-steps ends the run, since such a run counts steps rather than epochs.
    """
    total = config.total_steps(steps_per_epoch, epoch_offset)
    return (total, 0) if total == config.max_steps else (total + epoch_offset, epoch_offset)


SCHEDULES: Mapping[str, Callable[[Config, int, int], Schedule]] = MappingProxyType(
    {
        "constant": _constant,
        "shrink": _shrink,
        "multistep": _multistep,
        "cosine": _cosine,
        "poly": _poly,
        "wsd": _wsd,
        "onecycle": _onecycle,
    }
)
OWN = "task"
SHAPED = ("cosine", "poly", "wsd", "onecycle", OWN)  # schedules that depend on the length of the run


class OwnRate(Protocol):
    """Type of Task.learning_rate."""

    def __call__(self, step: int, *, lr: float, steps_per_epoch: int, total_steps: int) -> float:
        """Return the learning rate at a step."""


def learning_rate(config: Config, steps_per_epoch: int, epoch_offset: int = 0, own: OwnRate | None = None) -> Schedule:
    """Return the schedule of the learning rate that `config` asks for, warm-up included.

    An epoch has `steps_per_epoch` steps. After t steps, (t + epoch_offset) / steps_per_epoch epochs are over
    (psnode.records.generations). `own` is the task's schedule. Raises ConfigurationError if the setting is `task` and the task
    has no schedule.
    """
    if config.lr_schedule == OWN:
        if own is None:
            raise ConfigurationError(
                "--lr-schedule task needs a schedule of the task's own: write Task.learning_rate, or pass learning_rate to it"
            )
        schedule = _own(config, steps_per_epoch, epoch_offset, own)
    else:
        schedule = SCHEDULES[config.lr_schedule](config, steps_per_epoch, epoch_offset)
    if config.warmup_steps:
        return warmup(schedule, config.warmup_steps)
    return warmup(schedule, round(config.warmup_epochs * steps_per_epoch), epoch_offset)


def _own(config: Config, steps_per_epoch: int, epoch_offset: int, own: OwnRate) -> Schedule:
    total, epoch_offset = _end(config, steps_per_epoch, epoch_offset)

    def rate(step: int) -> float:
        found = own(step, lr=_lr(config), steps_per_epoch=steps_per_epoch, total_steps=total)
        try:
            value = float(found)
        except (TypeError, ValueError, RuntimeError):
            value = math.nan
        if not 0 <= value < math.inf:
            raise ConfigurationError(f"the task's learning rate of step {step} is {found!r}: it must be a number from 0 on")
        return value

    return moved(rate, epoch_offset)
