"""Profiles, on which predictions are based: measurements of a model's passes, of coding under several schemes, and of a host."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError

FORMAT = 1


@dataclass(frozen=True)
class TensorTimes:
    """A trainable tensor: its shape, two times in seconds, and its name (empty in profiles of earlier versions of psnode).

    `ready`: the time from the beginning of the backward pass until the tensor's gradient is finished. `needed`: the time from
    the beginning of the forward pass until the tensor is first used.
    """

    shape: tuple[int, ...]
    ready: float
    needed: float
    name: str = ""

    @property
    def nbytes(self) -> int:
        """Size of the tensor as float32, in bytes."""
        return 4 * math.prod(self.shape)


@dataclass(frozen=True)
class GroupCosts:
    """A group of a plan, with the bytes of its frames, and the seconds of one core that it costs in a step.

    `up`: bytes of a frame with the gradient. `down`: bytes of a frame with the weights or their change. `encode`, `apply`:
    seconds on a worker. `decode`: seconds on the master for each worker's gradient. `update`: seconds on the master from the
    finished sum to the frame with the new weights. `ready`: as in TensorTimes, for the last of the group's gradients.
    `needed`: as in TensorTimes, for the group's weight that is used first. `coded`, `plain`: numbers of coordinates that are
    coded, and that are sent uncoded; 0 in profiles of earlier versions of psnode.
    """

    up: int
    down: int
    encode: float
    apply: float
    decode: float
    update: float
    ready: float
    needed: float
    coded: int = 0
    plain: int = 0


@dataclass(frozen=True)
class FixedCosts:
    """The seconds of a coded segment that do not depend on its size. They are a part of the seconds in GroupCosts."""

    encode: float = 0.0
    apply: float = 0.0
    decode: float = 0.0
    update: float = 0.0


@dataclass(frozen=True)
class SchemeCosts:
    """The measured costs of a scheme: those of its `groups`, and the seconds of the work that belongs to no group.

    `bookkeeping`: the seconds of the master's other work for each frame. `extra`: the seconds by which a worker's measured
    step without communication is longer than the modelled one. `settings`, `plan`: as in plan files (psnode.plans.plan_file).
    `grouping`: the settings by which the plan was made (psnode.plans.rule.grouping_of). These three are empty in profiles of
    earlier versions of psnode. `fixed`: 0 if it was not measured. `accuracy`: a line that compares the recorded loss of the
    scheme with that of dense, or an empty text if no loss is recorded. `lossy`: False if gradients and weights are coded
    without loss or in half precision. `doubtful`: True if the recorded loss or the kind of the codec speaks against the
    scheme.
    """

    groups: tuple[GroupCosts, ...]
    bookkeeping: float
    extra: float
    lossy: bool
    accuracy: str = ""
    doubtful: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    grouping: Mapping[str, Any] = field(default_factory=dict)
    fixed: FixedCosts = FixedCosts()


@dataclass(frozen=True)
class HostCosts:
    """The costs of messages and additions on a host, in seconds of one core, and facts about its cores.

    `send`, `receive`: cost of a byte sent or received through TCP. `message`: cost of a message through MPI, at each end.
    `add`: cost of a byte of float32 that is added. `mpi`: cost of a byte of a frame through MPI, at each end; 0 if it was not
    measured. `cores`: the number of cores of the measured host. `crowded`: the rate of a core while all cores work on passes,
    relative to its rate while the others are idle. `ring_turn`, `ring_byte`: costs of an all-reduce through gloo (see
    RingCosts); 0 if they were not measured. `wake`: the mean time until a thread that wakes up for a message gets a core, if
    all cores are at work; 0 if it was not measured. `durations`: measured durations of a step's passes, in any unit; empty in
    profiles of earlier versions of psnode. `turns`: the rate of a core that switches between processes (see CoreRates).
    """

    send: float
    receive: float
    message: float
    add: float
    cores: int
    crowded: float
    mpi: float = 0.0
    ring_turn: float = 0.0
    wake: float = 0.0
    ring_byte: float = 0.0
    durations: tuple[float, ...] = ()
    turns: float = 1.0

    def slowest(self, workers: int) -> float:
        """Return the duration of the slowest of `workers` workers' passes, relative to the median duration of one worker's.

        It is the median of the maximum of independent draws from `durations`, which is the .5 ** (1 / workers) quantile of
        their distribution. As n durations show no quantile above 1 - 1 / n, this one is taken at most.
        """
        if not self.durations:
            return 1.0
        level = max(0.5, min(0.5 ** (1 / workers), 1 - 1 / len(self.durations)))
        median, slowest = np.quantile(self.durations, [0.5, level])
        return float(slowest / median)

    @property
    def mean_duration(self) -> float:
        """The mean of `durations` relative to their median; 1 without durations."""
        return float(np.mean(self.durations) / np.median(self.durations)) if self.durations else 1.0

    @property
    def sends(self) -> float:
        """The seconds of one core for each byte of a frame that is sent through MPI."""
        return self.mpi or self.send

    @property
    def takes(self) -> float:
        """The seconds of one core for each byte of a frame that is received through MPI."""
        return self.mpi or self.receive


@dataclass(frozen=True)
class Profile:
    """Measurements of a model's step on one worker, and of the work that schemes and DDP add to it.

    `forward`, `backward`: seconds of the passes. If a step has several batches, `forward` includes the passes over all
    batches before the last one. `optimizer`: seconds of torch's own optimizer. `tensors`: in the order in which their
    gradients finish. `schemes`: the costs of each scheme, by its flags. `ddp`: for each hook, the seconds that DDP adds to
    the passes of a process that is alone in its job. `of_adam`: True if the optimizer is Adam or a relative of Adam.
    """

    model: str
    threads: int
    forward: float
    backward: float
    optimizer: float
    tensors: tuple[TensorTimes, ...]
    host: HostCosts
    schemes: Mapping[str, SchemeCosts]
    ddp: Mapping[str, float]
    of_adam: bool = False
    hardware: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passes(self) -> float:
        """Seconds of the forward and backward passes of a step."""
        return self.forward + self.backward

    @property
    def nbytes(self) -> int:
        """Size of the gradient as float32, in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def save(self, file: Path) -> None:
        """Write the profile as JSON, creating its folder if needed. Raises ConfigurationError if it cannot be written."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(to_json({"format": FORMAT, **asdict(self)}, indent=1) + "\n")
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error

    @classmethod
    def load(cls, file: Path) -> Profile:
        """Return a saved profile. Raises ConfigurationError if `file` is not a profile of this format."""
        try:
            found = json.loads(file.read_bytes())
            if found.pop("format") != FORMAT:
                raise ValueError("another format")
            schemes = {
                name: SchemeCosts(
                    **{
                        **costs,
                        "groups": tuple(GroupCosts(**group) for group in costs["groups"]),
                        "fixed": FixedCosts(**costs.get("fixed", {})),
                    }
                )
                for name, costs in found.pop("schemes").items()
            }
            tensors = tuple(TensorTimes(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in found.pop("tensors"))
            host = HostCosts(**(measured := found.pop("host")) | {"durations": tuple(measured.get("durations", ()))})
            if not all(isinstance(each, int | float) and 0 < each < math.inf for each in host.durations):
                raise ValueError("durations that are no numbers above 0")
            return cls(**found, tensors=tensors, schemes=schemes, host=host)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"--profile {file} holds no profile ({error}): write one with psnode plan --save-profile"
            ) from error


def of_slowest(profile: Profile, workers: int) -> Profile:
    """Return `profile` with the passes of the slowest of `workers` workers."""
    return with_longer_passes(profile, profile.host.slowest(workers))


def with_longer_passes(profile: Profile, factor: float) -> Profile:
    """Return `profile` with passes that take `factor` times as long."""
    tensors = tuple(replace(each, ready=factor * each.ready, needed=factor * each.needed) for each in profile.tensors)
    return replace(profile, forward=factor * profile.forward, backward=factor * profile.backward, tensors=tensors)


def waiting(profile: Profile) -> Profile:
    """Return the profile of workers whose forward passes begin only when all weights have arrived, made from `profile`.

    Workers of sessions and workers without overlap wait in this way.
    """
    schemes = {
        name: replace(costs, groups=tuple(replace(group, needed=0.0) for group in costs.groups))
        for name, costs in profile.schemes.items()
    }
    return replace(profile, tensors=tuple(replace(tensor, needed=0.0) for tensor in profile.tensors), schemes=schemes)
