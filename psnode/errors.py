"""Exceptions that psnode raises on purpose, each with its exit code; that for another rank's error is in protocol/channel.py.

    PsnodeError                         1   a bug of ours, when nothing below fits
    ├── ConfigurationError              2   a setting is unknown, out of range or contradicts another
    ├── CodecError
    │   ├── CodecSpecError              2   a codec's name or parameter cannot be accepted
    │   ├── CodecTypeError              1   an argument of the wrong kind or dtype (a TypeError too)
    │   ├── CodecValueError             1   an argument of the wrong shape or size (a ValueError too)
    │   ├── PayloadError                1   bytes that are no valid payload
    │   └── NonFiniteGradientError      4   NaN or infinity where a gradient was expected
    │       └── NonFinitePartError          of a worker, whose memories are as they were
    ├── WireError                       1   bytes that are no valid frame of this job
    │   ├── TruncatedFrameError             shorter or longer than its header says
    │   ├── AlteredFrameError               checksum differs
    │   └── ForeignFrameError               other protocol, version or job
    ├── NormError                       1   a gradient out of all proportion to those of the others
    ├── DeviceError                     1   a device has failed, or memory does not suffice
    ├── TransportError
    │   ├── MissingRanksError           3   ranks absent at the start, or too few left
    │   ├── DeadlineExceededError       3   nothing arrived in time
    │   └── PeerLostError               3   a rank died or closed its end
    ├── CheckpointError                 5   a checkpoint cannot be read or written, or belongs to another run
    ├── DivergedError                   4   the loss is not finite, or replicas differ
    │   └── NonFiniteLossError              NaN or infinity where a worker expected its loss
    └── StoppedError                   75   stopped on request before a step was taken: start again; 130 if by Ctrl-C

A message is one line that names the fault and the remedy; details are attributes.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path


def installing(extra: str) -> str:
    """Return the command that installs the requirements of a part of psnode, in a clone: no package of this name is published."""
    return f"pip install '.[{extra}]' in a clone of psnode"


class PsnodeError(Exception):
    """Root of the tree. `exit_code` is that of the process if the error is not caught."""

    exit_code = 1


class ConfigurationError(PsnodeError):
    """A setting is unknown, out of range, or contradicts another one."""

    exit_code = 2


class CodecError(PsnodeError):
    """Root of everything a codec raises."""


class CodecSpecError(CodecError, ConfigurationError):
    """A codec spec names an unknown codec or parameter, or a value outside its bounds."""


class CodecTypeError(CodecError, TypeError):
    """An argument of encode or decode has the wrong type or dtype."""


class CodecValueError(CodecError, ValueError):
    """An argument of encode or decode has a shape or size that cannot be used."""


class PayloadError(CodecError):
    """Bytes that are not a valid payload, or a payload handed to the wrong codec."""


class NonFiniteGradientError(CodecError):
    """A gradient holds NaN or infinity at flat index `index`."""

    exit_code = 4

    def __init__(self, index: int, value: float) -> None:
        super().__init__(f"gradient is {value} at flat index {index}: only finite values can be coded")
        self.index = index
        self.value = value


class NonFinitePartError(NonFiniteGradientError):
    """A computed value of a worker is NaN or infinite; no memory was changed by it."""


class WireError(PsnodeError):
    """Bytes that are not a valid frame of this job; `source` is the rank they came from, if known."""

    def __init__(self, message: str, source: int | None = None) -> None:
        super().__init__(message if source is None else f"{message} (from rank {source})")
        self.source = source


class TruncatedFrameError(WireError):
    """A frame whose length differs from the one in its header."""


class AlteredFrameError(WireError):
    """A frame whose checksum differs from its contents."""


class ForeignFrameError(WireError):
    """A frame of another protocol, protocol version or job."""


class NormError(PsnodeError):
    """The whole gradient of `rank`, whose largest part is that of `group`, has `norm`, and no more than `bound` is accepted.

    `factor`: the part of it that counts all the same.
    """

    def __init__(self, rank: int, step: int, group: int, norm: float, bound: float, factor: float = 0.0) -> None:
        remedy = f"{factor:.2g} of it counts, and the rest returns to its memory" if factor else "look at its batch and its host"
        super().__init__(
            f"the gradient of rank {rank}, step {step}, group {group}, has the norm {norm:.3g}; more than {bound:.3g} is not "
            f"accepted: {remedy}, or set --norm-cap off"
        )
        self.rank, self.step, self.group, self.norm, self.bound = rank, step, group, norm, bound


class DeviceError(PsnodeError):
    """The device that a rank computes on has failed, or its memory does not suffice; the code that ran on it is not at fault."""


class TransportError(PsnodeError):
    """Root of everything a transport raises."""

    exit_code = 3


class MissingRanksError(TransportError):
    """Ranks that did not report in time; `ranks` names them."""

    def __init__(self, ranks: Iterable[int], seconds: float) -> None:
        self.ranks = tuple(sorted(ranks))
        names = ", ".join(map(str, self.ranks))
        super().__init__(
            f"rank{'s' if len(self.ranks) > 1 else ''} {names} did not report within {seconds:g} s: "
            "check that the hosts are up and reach each other, or raise --start-deadline"
        )


class DeadlineExceededError(TransportError):
    """A wait ended without the message it waited for."""


class PeerLostError(TransportError):
    """Rank `rank` died or closed its end."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} is lost: {reason}")
        self.rank = rank


class CheckpointError(PsnodeError):
    """A checkpoint is missing, damaged, of another run, or cannot be written."""

    exit_code = 5


class DivergedError(PsnodeError):
    """Training cannot continue: the loss is not finite, or replicas of the weights differ."""

    exit_code = 4


class NonFiniteLossError(DivergedError):
    """A worker's loss in `step` is `value`: NaN or infinity."""

    def __init__(self, value: float, rank: int, step: int) -> None:
        super().__init__(f"loss is {value} on rank {rank} at step {step}")
        self.value = value
        self.step = step


class StoppedError(PsnodeError):
    """The run was asked to stop by signal `reason`, and continues from `step` with --resume; 0: it has saved nothing yet."""

    exit_code = 75

    def __init__(self, step: int, reason: str) -> None:
        where = f"after step {step}: start again with --resume" if step else "before the first step: start again"
        super().__init__(f"stopped by {reason} {where}")
        self.step = step
        if reason == "SIGINT":
            self.exit_code = 130


_PACKAGE = str(Path(__file__).parent)
_PYTHON = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def location(error: BaseException) -> str:
    """`task.py:12 in batch`: the innermost frame that is neither psnode's nor a library's, else the innermost; "" without one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_PACKAGE, "<", *_PYTHON))] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else ""


def in_one_line(error: BaseException) -> str:
    """Type, message and location of an exception that psnode does not raise itself."""
    text, where = " ".join(f"{type(error).__name__}: {error}".split()), location(error)
    return f"{text.removesuffix(':')} ({where})" if where else text
