"""The bodies of control frames: JSON objects, with one dataclass per kind, which are strictly checked when read.

Messages between master M and worker W at the start of a job (docs/architecture.md):

    W HELLO   host, process, version and source of the worker, and its cores
    M CONFIG  the resolved configuration and scheme, and a mark by which the worker finds out if it shares the run's directory
    W READY   the model's tensors, and the machine that computes; from worker 1 also the times at which gradients finish
    M PLAN    segments and groups, and the version to start from; then STATE and WEIGHTS, if those of this worker differ
"""

from __future__ import annotations

import contextlib
import json
import math
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Self, cast

from psnode.errors import WireError
from psnode.protocol.wire import Bytes


@dataclass(frozen=True)
class _Message:
    def to_bytes(self) -> bytes:
        """Return the message as JSON text in UTF-8."""
        return json.dumps(vars(self), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, body: Bytes | bytes, source: int | None = None) -> Self:
        """Return the message in `body`: the inverse of to_bytes. Raises WireError if its fields are not valid."""
        try:
            data = json.loads(bytes(body))
        except (ValueError, RecursionError) as error:
            raise WireError(f"{cls.__name__} message is not JSON: {error}", source) from error
        names = {found.name: str(found.type) for found in fields(cls)}
        if not isinstance(data, dict) or set(data) != set(names):
            raise WireError(f"{cls.__name__} message must have the fields {', '.join(names)}", source)
        for name, declared in names.items():
            if not _accepted(declared, data[name]):
                raise WireError(f"{cls.__name__} message: {name} must be {declared}", source)
        message = cls(**{name: plain(value) if isinstance(value, str) else value for name, value in data.items()})
        if not message._is_sound():
            raise WireError(f"{cls.__name__} message: its fields contradict each other: {bytes(body)[:200]!r}", source)
        return message

    def _is_sound(self) -> bool:
        """Return True if the fields have values that a sender of this version could send. Their types are already checked."""
        return True


def plain(text: str) -> str:
    """Return `text` with a question mark for every character that could control a terminal, except line ends and tabs."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def _is_integer(value: object) -> bool:
    """Return True if `value` is an integer (not a bool) that fits into 64 bits, signed or unsigned.

    The check is needed because integers in JSON can be longer.
    """
    return type(value) is int and -(2**63) <= value < 2**64


def _is_real(value: object) -> bool:
    """Return True if `value` is a number that can be converted to float64. NaN and infinity are such numbers."""
    return type(value) is float or (type(value) is int and abs(value) < 2**1023)


def _is_name(value: object) -> bool:
    """Return True if `value` is a text of limited length without characters that control a terminal."""
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        return False
    return value.isprintable() or not any(map(_is_control, value))


def _is_control(letter: str) -> bool:
    """Return True for a control character, a line end, half a surrogate pair, or a character that sets the text's direction."""
    turns = unicodedata.bidirectional(letter) in _TURNS
    return turns or unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")


def _is_metric(item: tuple[object, object]) -> bool:
    return _is_name(item[0]) and _is_real(item[1])


_LONGEST_NAME = 1000
_MOST_METRICS = 100_000
_MOST_BYTES = 1 << 53  # limit of byte counts in a report, since other readers of JSON round larger numbers
_SHOWN = 100  # characters of a name in an error message
_TURNS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "int": _is_integer,
    "float": _is_real,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "dict[str, Any]": lambda value: isinstance(value, dict),
    "dict[str, float]": lambda value: (
        isinstance(value, dict) and len(value) <= _MOST_METRICS and all(map(_is_metric, value.items()))
    ),
    "list[Any]": lambda value: isinstance(value, list),
    "list[int]": lambda value: isinstance(value, list) and all(map(_is_integer, value)),
    "list[str]": lambda value: isinstance(value, list) and all(map(_is_name, value)),
}


def _accepted(declared: str, value: object) -> bool:
    """Return True if `value`, which was read from JSON, is of the type `declared` by a field."""
    kind, _, optional = declared.partition(" | ")
    return (optional == "None" and value is None) or _CHECKS[kind](value)


@dataclass(frozen=True)
class Hello(_Message):
    """HELLO: the identity of a rank.

    `source`: the digest of the rank's psnode source. `cores`: the number of cores that the rank may use. Ranks with the same
    `pool` share these cores. `arithmetic`: the rounding of the rank's processor (psnode.exchange.machine).
    """

    host: str
    pid: int
    version: str
    source: str
    cores: int = 1
    pool: str = ""
    arithmetic: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of_any_version(cls, body: Bytes | bytes, source: int) -> Self:
        """Return the greeting in `body`, even if another version of psnode has sent it.

        If its fields are not those of this version, the result holds only host, process and version, and `source` is empty.
        Raises WireError for an invalid greeting.
        """
        try:
            return cls.from_bytes(body, source)
        except WireError:
            with contextlib.suppress(ValueError, RecursionError, AttributeError):
                said = json.loads(bytes(body))
                host, pid, version = said.get("host"), said.get("pid"), said.get("version")
                another = said.keys() != {each.name for each in fields(cls)}
                if another and _is_name(host) and _is_integer(pid) and _is_name(version):
                    return cls(host, pid, version, "")
            raise

    def _is_sound(self) -> bool:
        return self.cores >= 1


@dataclass(frozen=True)
class Setup(_Message):
    """CONFIG: the settings of the run and the resolved scheme.

    `mark`: the contents of a file in the run's directory. A worker that finds this file can access the directory. `threads`:
    the number of threads that the worker uses.
    """

    config: dict[str, Any]
    scheme: dict[str, Any]
    train_dir: str
    mark: str
    threads: int = 1

    def _is_sound(self) -> bool:
        return self.threads >= 1


def _is_tensor(value: object) -> bool:
    """Return True if `value` is [name, shape]."""
    if not isinstance(value, list) or len(value) != 2 or not _is_name(value[0]) or not isinstance(value[1], list):
        return False
    return all(_is_integer(length) and length >= 0 for length in value[1])


def _is_content(value: object) -> bool:
    """Return True if `value` is [dtype, shape, hash]."""
    return isinstance(value, list) and len(value) == 3 and _is_integer(value[2]) and _is_tensor(value[:2])


def _is_timed(value: object) -> bool:
    """Return True if `value` is [name, seconds], and the seconds are finite."""
    return isinstance(value, list) and len(value) == 2 and _is_name(value[0]) and _is_real(value[1]) and math.isfinite(value[1])


def _is_arithmetic(value: Mapping[str, Any]) -> bool:
    """Return True if `value` has exactly the entries of psnode.exchange.machine.Machine.arithmetic."""
    return value.keys() == {"fma", "aten"} and isinstance(value["fma"], bool) and _is_name(value["aten"])


@dataclass(frozen=True)
class Ready(_Message):
    """READY: a worker's model and machine.

    `tensors`: [[name, shape], ...] of the trained tensors in the model's order. `contents`: by name, the dtype, shape and xxh3_64
    of the bytes of every parameter and buffer, trained or not. `examples`: the size of the data set. `shared_directory`: True if
    the worker can read the run's directory.

    Only worker 1 sends `backward`, `late` and `waits`. `backward`: [[name, seconds], ...] in the order in which gradients
    finish, with the seconds from the beginning of a backward pass. For a tensor without a gradient these are the seconds of
    the whole pass. `late`: the parameters whose gradients receive several additions in one pass. `waits`: the reason why
    forward passes must wait for all weights; empty if they need not wait.

    `host`, `cores` and `arithmetic`: see psnode.exchange.machine. `free`: the free memory of the host in bytes, None if
    unknown. `streams`: True if the examples come from an iterable data set, which yields each example only once.
    """

    tensors: list[Any]
    backward: list[Any] | None
    examples: int
    shared_directory: bool
    contents: dict[str, Any] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    waits: str = ""
    host: str = ""
    cores: int = 1
    arithmetic: dict[str, Any] = field(default_factory=lambda: {"fma": False, "aten": "DEFAULT"})
    free: int | None = None
    streams: bool = False

    @property
    def order(self) -> list[str] | None:
        """The names of the trained tensors in the order in which their gradients finish; None if `backward` is None."""
        return None if self.backward is None else [name for name, _ in self.backward]

    def _is_sound(self) -> bool:
        known = all(_is_name(name) and _is_content(value) for name, value in self.contents.items())
        sizes = self.examples >= 0 and self.cores >= 1 and _is_name(self.host) and (self.free is None or self.free >= 0)
        return sizes and all(map(_is_tensor, self.tensors)) and known and self._is_timed() and _is_arithmetic(self.arithmetic)

    def _is_timed(self) -> bool:
        """Return True if `backward` is None, or if it holds each tensor once, with seconds that never decrease."""
        if self.backward is None:
            return True
        if not all(map(_is_timed, self.backward)):
            return False
        seconds = [float(after) for _, after in self.backward]
        names = sorted(name for name, _ in self.backward)
        return names == sorted(name for name, _ in self.tensors) and all(a <= b for a, b in pairwise([0.0, *seconds]))


@dataclass(frozen=True)
class Start(_Message):
    """PLAN: the plan, the job digest of all later frames, and the starting point.

    These frames follow: as many STATE frames as `tensors` states, with parameters and buffers of rank 0 that the worker lacks;
    a STATE frame with the worker's own state if `state_follows` is True; and WEIGHTS frames of all groups if `weights_follow`
    is True. If `weights_follow` is False, the worker already has the weights.

    `rehearsal`: if True, the worker takes some steps with this plan, discards their results, and waits for another PLAN.
    `restore`: the name of the checkpoint to resume from, or None. `shift` and `sample_shift`: the epoch offsets of the
    schedules and of the data (psnode.records.generations). `late`: see Ready. `waits`: True if forward passes wait for all
    weights. `scheme`: the resolved scheme, or None if the scheme in CONFIG is used.
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
    tensors: int = 0
    weights_follow: bool = True
    late: list[str] = field(default_factory=list)
    waits: bool = False
    scheme: dict[str, Any] | None = None


@dataclass(frozen=True)
class Reshard(_Message):
    """RESHARD: from the next step on, the examples are dealt among `ranks`, in this order.

    A worker outside `ranks` draws from its own permutations of all examples until the next RESHARD. Other fields: see Start.
    """

    ranks: list[int]
    steps_per_epoch: int
    shift: int
    sample_shift: int
    last_step: int


@dataclass(frozen=True)
class Report(_Message):
    """REPORT: a worker's figures for one step.

    `loss`: the mean over `samples` examples, None if unknown. `metrics`: sums over these examples. `forward_backward`,
    `encode` and `wait`: seconds by the worker's clock. `replica_hash`: the xxh3_64 of the weights that the worker computed on;
    None in steps in which weights are not compared. `up`: bytes of gradients that the worker sent. `down`: bytes of weights
    that it sent. Both include frame headers. `memory`: the worker's peak memory in bytes in its last report; 0 in all other
    reports.
    """

    loss: float | None
    samples: int
    metrics: dict[str, float]
    forward_backward: float
    encode: float
    wait: float
    relative_error: float | None
    replica_hash: int | None
    up: int = 0
    down: int = 0
    memory: int = 0

    def _is_sound(self) -> bool:
        finite = self.loss is None or math.isfinite(self.loss)
        sizes = (self.up, self.down, self.memory)
        return finite and self.samples >= 0 and all(0 <= size < _MOST_BYTES for size in sizes)


def unreportable(samples: object, metrics: Mapping[Any, Any]) -> str:
    """Return the reason why a Report cannot hold these values; empty if it can hold them. The text is for the task's author."""
    if not _is_integer(samples) or cast(int, samples) < 0:
        return f"Task.size must return a whole number of examples, not {samples!a}"
    if len(metrics) > _MOST_METRICS:
        return f"{len(metrics)} metrics of a batch are more than {_MOST_METRICS}: leave some out"
    for item in metrics.items():
        if not _is_metric(item):
            return (
                f"the name of a metric is a text of at most {_LONGEST_NAME} characters, no controls among them, "
                f"and its sum a number: not {ascii(item[0])[:_SHOWN]}: {ascii(item[1])[:_SHOWN]}"
            )
    return ""


@dataclass(frozen=True)
class Evaluated(_Message):
    """EVALUATED from a worker: the result of the program's own evaluation of the weights of a version.

    `loss` and `metrics` are means over the evaluated examples. `examples` is the number of these examples, and `seconds` the
    time of the evaluation; each is 0 if the program does not state it. `saves`: True if the worker can still contribute to a
    checkpoint of the version, because no checkpoint of this version was due.
    """

    loss: float
    metrics: dict[str, float]
    examples: int = 0
    seconds: float = 0.0
    saves: bool = False

    def _is_sound(self) -> bool:
        return self.examples >= 0 and self.seconds >= 0


@dataclass(frozen=True)
class Failure(_Message):
    """FAILED: the reason why a rank cannot continue, and the rank's exit code, which is never 0.

    `traceback`: the traceback as Python prints it, or empty. `loss`: "nan", "inf" or "-inf" if the reason is a loss of this
    value, otherwise None.
    """

    message: str
    exit_code: int
    traceback: str = ""
    loss: str | None = None

    def _is_sound(self) -> bool:
        return 0 < self.exit_code < 256 and self.loss in (None, "nan", "inf", "-inf")
