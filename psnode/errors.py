"""Exceptions that psnode raises on purpose, and their exit codes. A few more, such as RemoteFailureError, are in other modules.

    PsnodeError                         1   a bug in psnode, when no class below fits
    ├── ConfigurationError              2   a setting is unknown, out of range or contradicts another
    ├── CodecError
    │   ├── CodecSpecError              2   a codec's name or parameter cannot be accepted
    │   ├── CodecTypeError              1   an argument of the wrong kind or dtype (a TypeError too)
    │   ├── CodecValueError             1   an argument of the wrong shape or size (a ValueError too)
    │   ├── PayloadError                1   bytes that are not a valid payload
    │   └── NonFiniteGradientError      4   NaN or infinity where a gradient was expected
    │       └── NonFinitePartError          NaN or infinity in a worker's gradient; the worker's residuals are unchanged
    ├── WireError                       1   bytes that are not a valid frame of this job
    │   ├── TruncatedFrameError             a frame is shorter or longer than its header says
    │   ├── AlteredFrameError               a frame's checksum is wrong
    │   └── ForeignFrameError               a frame of another protocol, version or job
    ├── NormError                       1   a gradient whose norm is above the accepted bound
    ├── DeviceError                     1   a device has failed or has too little memory
    ├── TransportError
    │   ├── MissingRanksError           3   ranks are absent at the start
    │   ├── DeadlineExceededError       3   nothing arrived in time
    │   └── PeerLostError               3   a rank died or closed its end
    ├── CheckpointError                 5   a checkpoint cannot be read or written, or belongs to another run
    ├── DivergedError                   4   the loss is not finite, or replicas differ
    │   └── NonFiniteLossError              NaN or infinity where a worker expected its loss
    └── StoppedError                   75   stopped before this start took a step; start again; 130 if by Ctrl-C

A message is one line that names the fault and the remedy; details are attributes.
"""

from __future__ import annotations

import json
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

_TRAIN = ("torch", "torchvision", "PIL", "safetensors", "tensorboard")
_EXTRAS = {**dict.fromkeys(_TRAIN, "train"), "mpi4py": "mpi"}  # the extra that installs a module's package, by module


def installing(extra: str) -> str:
    """Return the command that installs the optional dependencies `extra`. It depends on how psnode was installed.

    If pip installed a wheel file that still exists, the command installs from this file. For any other wheel, the command
    lists the required packages. If psnode runs in a clone or was installed from one, the command installs from the clone. No
    command installs just `psnode`, since psnode is not published as a package.
    """
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlparse

    clone = f"pip install '.[{extra}]' in a clone of psnode"
    if not _PACKAGE.startswith(_SITES):
        return clone
    try:
        found = distribution("psnode")
    except PackageNotFoundError:
        return clone
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    wheel = Path(unquote(urlparse(origin.get("url", "")).path))
    if wheel.suffix == ".whl" and wheel.is_file():
        return f"pip install '{wheel}[{extra}]'"
    parts = (text.partition(";") for text in found.requires or ())
    packages = [f"'{name.strip()}'" for name, _, marker in parts if f'extra == "{extra}"' in marker.replace("'", '"')]
    return f"pip install {' '.join(packages)}" if packages and "dir_info" not in origin else clone


def lacking(error: ModuleNotFoundError) -> str:
    """Return a line with the command that installs the package whose import failed with `error`.

    The line is empty if no extra of psnode installs the package.
    """
    name = error.name or ""
    return f"{name} is not installed: {installing(_EXTRAS[name])}" if name in _EXTRAS else ""


class PsnodeError(Exception):
    """Base class of all errors of psnode. The process ends with `exit_code` if the error is not caught."""

    exit_code = 1


class ConfigurationError(PsnodeError):
    """A setting is unknown, out of range, or contradicts another one."""

    exit_code = 2


class CodecError(PsnodeError):
    """Base class of all errors that a codec raises."""


class CodecSpecError(CodecError, ConfigurationError):
    """A codec spec names an unknown codec or parameter, or gives a parameter a value outside its bounds."""


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
    """A part of a worker's gradient holds NaN or infinity; the worker's residuals are unchanged."""


class WireError(PsnodeError):
    """Bytes that are not a valid frame of this job; `source` is the rank that sent them, if known."""

    def __init__(self, message: str, source: int | None = None) -> None:
        super().__init__(message if source is None else f"{message} (from rank {source})")
        self.source = source


class TruncatedFrameError(WireError):
    """A frame whose length differs from the length in its header."""


class AlteredFrameError(WireError):
    """A frame whose checksum does not match its contents."""


class ForeignFrameError(WireError):
    """A frame of another protocol, protocol version or job."""


class NormError(PsnodeError):
    """The gradient of `rank` in `step` has a norm above the accepted `bound`. `group` holds the gradient's largest part.

    `factor`: the fraction of the gradient that is used nevertheless; 0 if the gradient is refused.
    """

    def __init__(self, rank: int, step: int, group: int, norm: float, bound: float, factor: float = 0.0) -> None:
        remedy = f"{factor:.2g} of it counts, and the rest returns to its memory" if factor else "look at its batch and its host"
        super().__init__(
            f"the gradient of rank {rank}, step {step}, group {group}, has the norm {norm:.3g}; more than {bound:.3g} is not "
            f"accepted: {remedy}, or set --norm-cap off"
        )
        self.rank, self.step, self.group, self.norm, self.bound = rank, step, group, norm, bound


class DeviceError(PsnodeError):
    """The device of a rank has failed or has too little memory. The code that ran on the device is not at fault."""


class TransportError(PsnodeError):
    """Base class of all errors that a transport raises."""

    exit_code = 3


class MissingRanksError(TransportError):
    """The ranks in `ranks` did not report in time."""

    def __init__(self, ranks: Iterable[int], seconds: float) -> None:
        self.ranks = tuple(sorted(ranks))
        names = ", ".join(map(str, self.ranks))
        super().__init__(
            f"rank{'s' if len(self.ranks) > 1 else ''} {names} did not report within {seconds:g} s: "
            "check that the hosts are up and reach each other, or raise --start-deadline"
        )


class DeadlineExceededError(TransportError):
    """A wait ended before the expected message arrived."""


class PeerLostError(TransportError):
    """Rank `rank` died or closed its end of the connection."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(f"rank {rank} is lost: {reason}")
        self.rank = rank
        self.reason = reason


class CheckpointError(PsnodeError):
    """A checkpoint is missing, damaged, of another run, or cannot be written."""

    exit_code = 5


class DivergedError(PsnodeError):
    """Training cannot continue: the loss is not finite, or replicas of the weights differ."""

    exit_code = 4


class NonFiniteLossError(DivergedError):
    """The loss of a worker in `step` is `value`: NaN or infinity."""

    def __init__(self, value: float, rank: int, step: int) -> None:
        super().__init__(f"loss is {value} on rank {rank} at step {step}")
        self.value = value
        self.step = step


class StoppedError(PsnodeError):
    """The run was stopped by signal `reason`. With --resume it continues from `step`; if `step` is 0, nothing was saved yet."""

    exit_code = 75

    def __init__(self, step: int, reason: str) -> None:
        where = f"after step {step}: start again with --resume" if step else "before the first step: start again"
        super().__init__(f"stopped by {reason} {where}")
        self.step = step
        if reason == "SIGINT":
            self.exit_code = 130


_PACKAGE = str(Path(__file__).parent)
_SITES = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))
_PYTHON = (*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")), *_SITES)


def location(error: BaseException) -> str:
    """Return the place at which `error` was raised, such as `task.py:12 in batch`; "" without a traceback.

    The place is the innermost frame outside psnode and the libraries, or the innermost of all frames if none is outside.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith((_PACKAGE, "<", *_PYTHON))] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else ""


def in_one_line(error: BaseException) -> str:
    """Return in one line the type, message and location of an exception that psnode does not raise itself."""
    text, where = " ".join(f"{type(error).__name__}: {error}".split()), location(error)
    return f"{text.removesuffix(':')} ({where})" if where else text
