"""The bodies of control frames: JSON objects, one dataclass a kind, strictly checked when read.

Start of a job, master M and worker W (docs/architecture.md):

    W HELLO   "host, process, version"
    M CONFIG  the resolved configuration and scheme, and a mark to find in the run's directory if that is shared
    W READY   the model's tensors; from worker 1 also the order in which their gradients finish
    M PLAN    segments and groups, and the version to start from; then WEIGHTS, a frame a group
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from psnode.errors import WireError

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Message:
    def to_bytes(self) -> bytes:
        """The JSON text, UTF-8."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, body: Bytes | bytes, source: int | None = None) -> Self:
        """Inverse of to_bytes; WireError if a field is missing, unknown or of the wrong type."""
        try:
            data = json.loads(bytes(body))
        except (ValueError, RecursionError) as error:
            raise WireError(f"{cls.__name__} message is no JSON: {error}", source) from error
        names = {field.name: str(field.type) for field in fields(cls)}
        if not isinstance(data, dict) or set(data) != set(names):
            raise WireError(f"{cls.__name__} message must have the fields {', '.join(names)}", source)
        for name, declared in names.items():
            if not isinstance(data[name], _ACCEPTED[declared]):
                raise WireError(f"{cls.__name__} message: {name} must be {declared}", source)
        return cls(**data)


_ACCEPTED: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "dict[str, Any]": (dict,),
    "dict[str, float]": (dict,),
    "list[Any]": (list,),
    "list[str] | None": (list, type(None)),
    "float | None": (int, float, type(None)),
    "str | None": (str, type(None)),
    "int | None": (int, type(None)),
}


@dataclass(frozen=True)
class Hello(_Message):
    """Who a rank is, for the log and for error messages."""

    host: str
    pid: int
    version: str


@dataclass(frozen=True)
class Setup(_Message):
    """CONFIG: what to train and how, and the resolved scheme. `mark` is the contents of a file in the run's directory."""

    config: dict[str, Any]
    scheme: dict[str, Any]
    train_dir: str
    mark: str


@dataclass(frozen=True)
class Ready(_Message):
    """READY: `tensors` [[name, shape], ...] in the model's order; `order` their names as gradients finish."""

    tensors: list[Any]
    order: list[str] | None
    examples: int
    shared_directory: bool


@dataclass(frozen=True)
class Start(_Message):
    """PLAN: the plan, the job digest of all later frames, and where to start; STATE frames follow if `state_follows`.

    `rehearsal`: take some steps by this plan, leave no trace of them, and wait for another PLAN.
    `shift` and `sample_shift` place a step in the epochs of the schedules and of the data (psnode.parts).
    """

    plan: dict[str, Any]
    job: int
    step: int
    last_step: int
    steps_per_epoch: int
    restore: str | None
    state_follows: bool
    rehearsal: bool = False
    shift: int = 0
    sample_shift: int = 0


@dataclass(frozen=True)
class Deal(_Message):
    """DEAL: from the next step on the examples are dealt among `ranks`, in this order; the rest as in Start.

    A worker that is not among them draws examples of its own choice until the next.
    """

    ranks: list[Any]
    steps_per_epoch: int
    shift: int
    sample_shift: int
    last_step: int


@dataclass(frozen=True)
class Report(_Message):
    """REPORT: a worker's account of one step. Sums over `samples`; seconds of its own clock.

    `replica_hash` is the xxh3_64 of the weights it computed on, in steps where it is asked for.
    """

    loss: float
    samples: int
    metrics: dict[str, float]
    forward_backward: float
    encode: float
    wait: float
    relative_error: float | None
    replica_hash: int | None


@dataclass(frozen=True)
class Failure(_Message):
    """FAILED: why a rank cannot go on, and the exit code that stands for it."""

    message: str
    exit_code: int
