"""The space of a sweep: `--vary NAME=V1,V2,...` or `NAME=LOW..HIGH`, and the flags of `psnode train` for its values.

NAME is a setting, or else a parameter of the codec, such as ratio, levels or rank.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from psnode.codecs.registry.python_files import class_in
from psnode.codecs.spec import parse as stages_of
from psnode.config import Config, settings
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError

_RANGE = re.compile(r"(?P<low>[^.,][^,]*?)\.\.(?P<high>[^,]+)")
_MEANS = "--vary NAME=V1,V2,... or NAME=LOW..HIGH"
_FIXED = ("train_dir", "resume", "max_steps", "epochs", "stop_after", "local")  # set by tune, or not a property of a training


@dataclass(frozen=True)
class Varied:
    """A setting or parameter that a sweep varies.

    It has a list of `values` as text or, if the list is empty, a range from `low` to `high`. `whole`: True if the range
    contains only whole numbers.
    """

    name: str
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False

    @property
    def is_range(self) -> bool:
        """Return True if values are drawn from a range."""
        return not self.values

    @property
    def logarithmic(self) -> bool:
        """Return True if the range spans at least a factor of ten, so that values are drawn uniformly in their logarithm."""
        return self.low > 0 and self.high / self.low >= 10


def parse(texts: Iterable[str]) -> tuple[Varied, ...]:
    """Return the variations that the values of --vary describe. Lists of the same name are joined.

    Raises ConfigurationError for invalid texts.
    """
    found: dict[str, Varied] = {}
    for text in texts:
        one = _parse(text)
        before = found.get(one.name)
        if before is not None and (before.is_range or one.is_range):
            raise ConfigurationError(f"--vary names {one.name} twice, and one is a range: drop one of the two")
        values = (*(before.values if before else ()), *one.values)
        found[one.name] = one if one.is_range else Varied(one.name, tuple(dict.fromkeys(values)))
    return tuple(found.values())


def _parse(text: str) -> Varied:
    key, equals, value = text.partition("=")
    name = key.strip().lstrip("-").replace("-", "_")
    if not name.isidentifier() or not equals or not value.strip():
        raise ConfigurationError(f"--vary must be {_MEANS}, not {text!r}")
    if name == "seed":
        raise ConfigurationError("--vary seed is not possible: the best would be a lucky one; add --seeds 3 to compare means")
    if name in _FIXED:
        raise ConfigurationError(f"--vary {name} is not possible: tune sets it; leave it out")
    if name in settings() and (settings()[name].many or settings()[name].keyed):
        raise ConfigurationError(f"--vary {name} is not possible: its value is a list already; leave it out")
    match = _RANGE.fullmatch(value.strip())
    if match is not None and "/" not in value:
        return _range(name, match["low"], match["high"], text)
    return Varied(name, tuple(_listed(value)))


def _listed(text: str) -> Iterator[str]:
    """Yield the values between the commas of `text`.

    A part of the form NAME=VALUE is joined to the part before it: in `qsgd:levels=15,bucket=512`, `bucket=512` is no value of
    its own.
    """
    value = ""
    for part in (part.strip() for part in text.split(",")):
        if value and re.match(r"\w+=", part):
            value += f",{part}"
            continue
        if value:
            yield value
        value = part
    if value:
        yield value


def _range(name: str, low: str, high: str, text: str) -> Varied:
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = math.nan, math.nan
    if not (ends[0] < ends[1] and all(map(math.isfinite, ends))):
        raise ConfigurationError(f"--vary must be {_MEANS} with numbers LOW < HIGH, not {text!r}")
    return Varied(name, (), *ends, whole=all(re.fullmatch(r"[+-]?\d+", end) for end in (low, high)))


def grid(varied: Sequence[Varied]) -> list[dict[str, str]]:
    """Return every combination of the listed values; the last name varies fastest."""
    return [
        dict(zip([one.name for one in varied], values, strict=True))
        for values in itertools.product(*(one.values for one in varied))
    ]


def flags(values: Mapping[str, str], options: Sequence[str], base: str, codec: str | None = None) -> list[str]:
    """Return the flags of `psnode train` for `options` and for the varied `values` of a trial.

    `base` and `codec`: the scheme and the codec of `options`; `values` may replace them. Values that are not settings are
    parameters of the codec or, if no codec is given, of the scheme's codec.
    """
    found = [*options]
    parameters = {name: value for name, value in values.items() if name not in settings()}
    coded = "codec" if values.get("codec", codec) else "scheme"
    spec = values.get(coded, codec if coded == "codec" else base) or base
    if parameters:
        spec = _with(parameters, spec)
    for name, value in values.items():
        if name in settings() and name != coded:
            setting = settings()[name]
            if setting.kind is bool:
                found.append(setting.flag if setting.parse(value, f"--vary {name}") else f"--no-{setting.flag[2:]}")
            else:
                found += [setting.flag, value]
    return [*found, f"--{coded}", spec] if parameters or coded in values else found


def _with(parameters: Mapping[str, str], spec: str) -> str:
    """Return `spec` with `parameters` added to its first stage. `spec` may begin with FILE:NAME."""
    own = class_in(spec)
    named = "" if own is None else f"{own.file}:{own.name}"
    stage, plus, rest = (spec if own is None else own.rest).partition("+")
    given = ",".join(f"{name}={value}" for name, value in parameters.items())
    return f"{named}{stage}{',' if ':' in stage else ':'}{given}{plus}{rest}"


def parameters_of(scheme: str, codec: str | None = None) -> set[str]:
    """Return the names of the parameters of `codec` or, if it is None, of the codec of `scheme`.

    `codec` is a value of --codec; if it names a file, the file is executed. Raises ConfigurationError for an invalid value.
    """
    return set(stages_of(resolve(Config(codec=codec) if codec else Config(scheme=scheme)).codec).stages[0].settings)
