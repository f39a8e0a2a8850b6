"""The choice of --plan auto: the run's scheme, bf16 or dense, whichever is fastest in trial steps on the job's own links.

Steps are measured and not predicted, since trial steps show everything that limits a step: links, cores that ranks share,
other programs. A scheme is not tried if sending its bytes would take more than twice as long as a step of the fastest
scheme. Among schemes that are almost equally fast, the scheme that loses least accuracy is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from psnode.config import Config
from psnode.config.amounts import milliseconds, rate_text
from psnode.config.coding_name import coding_name
from psnode.config.effects import CLIPPED
from psnode.config.names import DENSE
from psnode.config.resolve import resolve
from psnode.config.scheme import Scheme
from psnode.config.schemes import SETTINGS
from psnode.errors import ConfigurationError
from psnode.plans.coding import loses
from psnode.plans.prediction import NEAR
from psnode.protocol.link_rates import LinkRates

_CLOSE = 1.2  # schemes whose step takes at most this multiple of the fastest step are tried again
_AGAIN = 2
_SURE = 2  # a scheme is not tried if its bytes alone take longer than this multiple of the fastest step
BF16 = "bf16"


@dataclass(frozen=True)
class Candidate:
    """A scheme that may be chosen. `up`, `down`: the bytes that one worker sends and receives in a step."""

    name: str
    config: Config
    scheme: Scheme
    up: float = 0.0
    down: float = 0.0

    def least(self, links: LinkRates, workers: int) -> float:
        """Return the least seconds in which the bytes of a step of `workers` workers pass the master's link."""
        return max(workers * self.up / links.up, workers * self.down / links.down)


@dataclass(frozen=True)
class Choice:
    """The chosen `candidate`, the median `seconds` of its trial steps, and lines that explain the choice to the user."""

    candidate: Candidate
    seconds: float
    told: tuple[str, ...]


def candidates(config: Config, scheme: Scheme) -> list[Candidate]:
    """Return the run's own scheme, and as possible replacements bf16 and dense, if they lose less accuracy.

    A replacement has the run's learning rate, momentum and other settings. It is left out if its own default rate or
    momentum is not that of the run's scheme, or if a setting of the run is invalid with it.
    """
    own = coding_name(scheme.name, scheme.codec, replaced=bool(config.codec))
    found = [Candidate(own, config, scheme)]
    # bf16 keeps fewer bits than fp16, and rounds what a lossless codec keeps
    others = () if own == DENSE else (BF16, DENSE) if loses(scheme.codec) else (DENSE,)
    for name in others:
        settings: dict[str, Any] = {**dict.fromkeys(SETTINGS), "scheme": name}
        if name == DENSE:  # these settings have no effect on dense
            settings |= {"small_tensors": "plain", "min_compress_bytes": Config().min_compress_bytes}
        elif scheme.downlink == DENSE:
            settings["downlink"] = DENSE
        if config.aggregator == CLIPPED:
            settings["aggregator"] = CLIPPED
        try:
            other = resolve(replace(config, **settings))
        except ConfigurationError:
            continue
        if other.lr == scheme.lr and other.momentum == scheme.momentum:
            found.append(Candidate(name, replace(config, train_dir=config.directory, **settings), other))
    return found


def choose(found: Sequence[Candidate], links: LinkRates, workers: int, trial: Callable[[Candidate], float]) -> Choice:
    """Return the choice among the candidates `found`, which are ordered from the most to the least lossy scheme.

    `trial` takes some trial steps of a candidate and returns their median duration in seconds.
    """
    tried: dict[str, list[float]] = {}
    skipped: dict[str, float] = {}
    for each in sorted(found, key=lambda each: each.least(links, workers)):
        least, best = each.least(links, workers), min(map(median, tried.values()), default=float("inf"))
        if least > _SURE * best:
            skipped[each.name] = least
        else:
            tried[each.name] = [trial(each)]
    best = min(map(median, tried.values()))
    close = [each for each in found if each.name in tried and median(tried[each.name]) <= _CLOSE * best]
    for _ in range(_AGAIN if len(close) > 1 else 0):
        for each in close:
            tried[each.name].append(trial(each))
    seconds = {name: median(times) for name, times in tried.items()}
    best = min(seconds.values())
    chosen = [each for each in found if seconds.get(each.name, float("inf")) <= NEAR * best][-1]
    return Choice(chosen, seconds[chosen.name], tuple(_lines(chosen, seconds, skipped, links)))


def ddp_line(nbytes: int, links: LinkRates, workers: int, seconds: float) -> str:
    """Return a line about the least seconds that PyTorch's DDP needs to exchange `nbytes` bytes of float32 gradients.

    `seconds`: the duration of the chosen step. The links between workers are assumed to be as fast as the master's. Each of
    P workers sends and receives 2 (P - 1) / P times `nbytes` (R. Thakur et al., Int. J. High Perform. Comput. Appl. 19,
    2005).
    """
    least = 2 * (workers - 1) / workers * nbytes / min(links.up, links.down)
    if least > NEAR * seconds:
        fp16 = milliseconds(least / 2)
        return f"PyTorch's DDP would need at least {milliseconds(least)} a step, with fp16 {fp16}, on such links"
    return "PyTorch's DDP may be as fast on such links: psnode plan compares"


def _lines(chosen: Candidate, seconds: Mapping[str, float], skipped: Mapping[str, float], links: LinkRates) -> list[str]:
    verb = "compress" if loses(chosen.scheme.codec) or loses(chosen.scheme.downlink) else "do not compress"
    others = [f"{name} {milliseconds(each)}" for name, each in seconds.items() if name != chosen.name]
    others += [f"{name} at least {milliseconds(least)} by its bytes" for name, least in skipped.items()]
    beside = f"; {', '.join(others)}" if others else ""
    rates = f"{rate_text(8 * links.up)} up, {rate_text(8 * links.down)} down, {milliseconds(links.round_trip)} there and back"
    return [
        f"{verb}: a step of {chosen.name} takes {milliseconds(seconds[chosen.name])}{beside}",
        f"the master's link: {rates}",
    ]
