"""Profiles, from which steps are predicted: the passes of a model, coding under several schemes, and the host."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError

FORMAT = 1


@dataclass(frozen=True)
class TensorTimes:
    """A trainable tensor: its shape, two times in seconds, and its name, which is empty in profiles of earlier versions.

    `ready`: from the beginning of the backward pass until its gradient is finished. `needed`: from the beginning of the forward
    pass until its first use.
    """

    shape: tuple[int, ...]
    ready: float
    needed: float
    name: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes as float32."""
        return 4 * math.prod(self.shape)


@dataclass(frozen=True)
class GroupCosts:
    """A group of a plan: its frames in bytes, and the seconds of one core that it costs in a step.

    `up`, `down`: a frame of the gradient, and of the weights or their change. `encode`, `apply`: on a worker. `decode`: on the
    master, for each worker. `update`: on the master, from the finished sum to the frame for the workers. `ready`, `needed`: as in
    TensorTimes, of the last gradient and of the first weight. `coded`, `plain`: coordinates that are coded, and those that travel
    as they are; 0 in profiles of earlier versions.
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
class SchemeCosts:
    """A scheme: its groups, `bookkeeping`, the master's other work for each frame, and `extra`, both in seconds.

    `extra`: the seconds by which a worker's measured step, without communication, exceeded the model of it.
    `settings`, `plan`: its settings and its plan, as plan files hold them (psnode.plans.plan_file). `grouping`: the settings by
    which the plan was made (psnode.plans.rule.grouping_of); empty in profiles of earlier versions.
    `accuracy`: a line with the recorded loss of the scheme beside dense; empty if none is recorded. `lossy`: False for schemes
    whose gradients travel as float32, fp16 or bf16. `doubtful`: True if the record or the codec's kind speaks against it.
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


@dataclass(frozen=True)
class HostCosts:
    """Costs of a host, in seconds of one core.

    `send`, `receive`: for each byte through TCP. `message`: for each message through MPI, at each end. `add`: for each byte of
    float32 added. `cores`: those of the measured host.
    `crowded`: rate of a core while all cores work on passes, relative to a core that works alone. `mpi`: for each byte of a frame
    through MPI, at each end; 0 if it was not measured.
    """

    send: float
    receive: float
    message: float
    add: float
    cores: int
    crowded: float
    mpi: float = 0.0

    @property
    def sends(self) -> float:
        """The seconds for each byte of a frame that is sent through MPI."""
        return self.mpi or self.send

    @property
    def takes(self) -> float:
        """The seconds for each byte of a frame that is received through MPI."""
        return self.mpi or self.receive


@dataclass(frozen=True)
class Profile:
    """A model's step on one worker. `forward`, `backward`, `optimizer`: seconds; the last is that of torch's own optimizer.
    Passes over earlier batches of the step count as part of `forward`.

    `tensors`: in the order in which their gradients finish. `schemes`: by flags. `ddp`: by hook, the seconds that DDP adds to the
    passes of a process that is alone in its job. `of_adam`: the optimizer is one of Adam's relatives.
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
        """Seconds of a step without communication."""
        return self.forward + self.backward

    @property
    def nbytes(self) -> int:
        """The bytes of the gradient as float32."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def save(self, file: Path) -> None:
        """Write the profile as JSON, creating its folder if needed. Raises ConfigurationError if that fails."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(to_json({"format": FORMAT, **asdict(self)}, indent=1) + "\n")
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error

    @classmethod
    def load(cls, file: Path) -> Profile:
        """Return a saved profile. Raises ConfigurationError if `file` holds none of this format."""
        try:
            found = json.loads(file.read_bytes())
            if found.pop("format") != FORMAT:
                raise ValueError("another format")
            schemes = {
                name: SchemeCosts(**{**costs, "groups": tuple(GroupCosts(**group) for group in costs["groups"])})
                for name, costs in found.pop("schemes").items()
            }
            tensors = tuple(TensorTimes(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in found.pop("tensors"))
            host = HostCosts(**found.pop("host"))
            return cls(**found, tensors=tensors, schemes=schemes, host=host)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"--profile {file} holds no profile ({error}): write one with psnode plan --save-profile"
            ) from error


def waiting(profile: Profile) -> Profile:
    """Return the profile of workers whose forward passes begin when all weights have arrived, as those of a session do, and those
    without overlap."""
    schemes = {
        name: replace(costs, groups=tuple(replace(group, needed=0.0) for group in costs.groups))
        for name, costs in profile.schemes.items()
    }
    return replace(profile, tensors=tuple(replace(tensor, needed=0.0) for tensor in profile.tensors), schemes=schemes)
