"""`python -m studies.predictions`: step times predicted by `psnode plan`, compared with those on emulated hosts; needs root.

A situation is a combination of --network, --rate and --workers; the network LSTM is that of examples/charlm.py. The study takes
all of them, or --situations of them, drawn by --seed. In each situation all contenders are measured as in `psnode bench peers`,
every scheme under each --topology and with a timeline. Contenders whose predicted step takes more than --most seconds are left
out, and so are schemes that train refuses under a topology. A profile is measured once for each network, in this process, before
the first job. All hosts share this machine's cores.

The speed of a machine that others use too changes within minutes. So the passes of the network are timed again before and after
each cell, and the cell is also predicted from a profile at their mean speed. These predictions are shown, and not counted.

A cell is a contender in a situation. The predictions are accepted if their median error is at most 5 %, their error is at most
10 % in nine of ten cells, and no error exceeds 20 %. These bounds were set before the first measurement.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from psnode.bench.contest.contender_run import run_trial
from psnode.bench.contest.contenders import Contender, Ddp, Psnode, SharedSettings
from psnode.bench.contest.labs import BURST, ROUND_TRIP
from psnode.config.amounts import rate_of
from psnode.config.cores import usable_cores
from psnode.config.declaration import option
from psnode.config.load import load
from psnode.errors import ConfigurationError, TransportError
from psnode.jobs.planning.forecast import Forecast, forecasts, judge
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.profiling import measure as measure_profile
from psnode.jobs.planning.routing.routed_groups import USUAL
from psnode.jobs.planning.scenario import Scenario
from studies import path_shares
from studies.harness import Column, Found, Result, Row, Study, main
from studies.machine_speed import RepeatedPasses, slowed

MEDIAN, MOST_OF, WORST = 0.05, 0.10, 0.20
_SHARE = 0.9  # share of the cells whose error must not exceed MOST_OF
_TASKS = {"LSTM": str(Path(__file__).parents[1] / "examples" / "charlm.py")}  # tasks that count as networks
_BATCHES = {"LeNet": 32, "ResNet18": 16, "torchvision:resnet18": 16, "VGG11": 16}


class Situation(NamedTuple):
    """A network or "LSTM", the rate of the links as text (none: not limited), and a number of workers."""

    network: str
    rate: str
    workers: int


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.predictions`."""

    network: tuple[str, ...] = option(("LeNet", "ResNet18", "VGG11", "LSTM"), "Repeat for more.", repeated=True)
    rate: tuple[str, ...] = option(("10mbit", "100mbit", "1gbit", "none"), "Of the links; repeat for more.", repeated=True)
    workers: tuple[int, ...] = option((2, 4, 6), "Repeat for more.", minimum=1, repeated=True, metavar="P", aliases=("-n",))
    scheme: tuple[str, ...] = option(("dense", "bf16", "qsgd", "topk", "polar-2bit"), "Repeat for more.", repeated=True)
    ddp: tuple[str, ...] = option(("fp32", "fp16", "powersgd:rank=2"), "Hooks of DDP; repeat for more.", repeated=True)
    topology: tuple[str, ...] = option((USUAL,), "As for train; repeat for more.", repeated=True)
    situations: int = option(0, "How many of all situations are drawn; 0: all.", minimum=0)
    seed: int = option(1, "Of the draw.", minimum=0)
    steps: int = option(10, "Steps to measure.", minimum=2)
    warmup: int = option(4, "Steps before them.", minimum=1)
    rounds: int = option(1, "How often every cell is measured; the median counts.", minimum=1)
    most: float = option(3.0, "Seconds of a step above which a cell is left out.", above=0)


def drawn(options: Options) -> list[Situation]:
    """Return the situations to measure, ordered by network."""
    every = [Situation(*each) for each in itertools.product(options.network, options.rate, options.workers)]
    if not options.situations:
        return every
    chosen = random.Random(options.seed).sample(every, min(options.situations, len(every)))
    return sorted(chosen, key=every.index)


def measure(options: Options) -> Found:
    """Return a row for each contender in each situation.

    A row has the situation, `name`, `predicted` and `measured` (a list) in seconds, and `off`, which is predicted / median of
    measured - 1. `waits` and `waited`: what most of the step waits for, as predicted and as measured (see studies.path_shares);
    the latter is None for DDP. `slowdown`: the duration of passes beside the cell, relative to that in the profile. `then`: the
    prediction at this speed, in seconds. `lossy`, `doubtful`, `topology`: see psnode.jobs.planning.forecast.Forecast.
    Raises ConfigurationError for a scheme that train refuses, and for a topology whose jobs `psnode bench peers` cannot measure.
    """
    floors = dict[str, float]()
    return Found(_rows(options, floors), {"floors": floors})


def _rows(options: Options, floors: dict[str, float]) -> Iterator[dict[str, Any]]:
    """Yield the rows. Add the seconds of the passes of each network to `floors` when its profile has been measured."""
    profiles = dict[str, Profile]()
    for situation in drawn(options):
        network = situation.network
        if network not in profiles:
            profiles[network] = profile_of(network, options.scheme)
            passes = RepeatedPasses(load(_base(network), {}))
            floors[network] = profiles[network].passes
        yield from _cells(situation, profiles[network], passes, options)


def profile_of(network: str, schemes: Sequence[str]) -> Profile:
    """Return the profile of `network` under `schemes`, with batches of synthetic images, or of characters for the LSTM.

    A scheme may be followed by flags of train.
    """
    base = _base(network)
    chosen = {flags: load(base | Psnode(flags).settings, {}) for flags in schemes}
    return measure_profile(load(base, {}), chosen, lambda line: print(f"{network}: {line}", file=sys.stderr, flush=True))


def _base(network: str) -> dict[str, Any]:
    data = {"task": _TASKS[network]} if network in _TASKS else {"network": network, "dataset": "synthetic"}
    return {**data, "batch_size": _batch(network), "threads": 1, "lr": 0.01}


def _batch(network: str) -> int:
    return _BATCHES.get(network, 16)


def contenders_of(options: Options, expected: Iterable[Forecast]) -> Iterator[tuple[Forecast, Contender]]:
    """Yield the contenders of `options` with their forecasts."""
    for forecast in expected:
        if not forecast.peer:
            flags = "--timeline true" if forecast.topology == USUAL else f"--timeline true --topology {forecast.topology}"
            yield forecast, Psnode(f"{forecast.name} {flags}")
        elif (hook := forecast.name.removeprefix("DDP ")) in options.ddp:
            yield forecast, Ddp(hook)


def _cells(situation: Situation, profile: Profile, passes: RepeatedPasses, options: Options) -> Iterator[dict[str, Any]]:
    rate = None if situation.rate == "none" else rate_of(situation.rate)
    scenario = Scenario(situation.workers, rate, ROUND_TRIP, usable_cores(), shared=True, burst=BURST)
    expected = forecasts(profile, scenario, options.topology)
    steps = options.warmup + options.steps + 1
    network = situation.network
    shared = SharedSettings(
        network=network, task=_TASKS.get(network), workers=situation.workers, batch=_batch(network), steps=steps
    )
    for forecast, contender in contenders_of(options, expected):
        name = forecast.label
        if forecast.seconds > options.most:
            continue
        try:
            before = passes.seconds()
            trials = [_trial(contender, shared, situation.rate, options.warmup) for _ in range(options.rounds)]
        except TransportError as error:
            print(f"{situation}, {name}: {error}", file=sys.stderr, flush=True)
            continue
        slowdown = (before + passes.seconds()) / 2 / profile.passes
        again = forecasts(slowed(profile, slowdown), scenario, options.topology)
        [then] = [each.seconds for each in again if each.label == name]
        taken = [seconds for seconds, _ in trials]
        off = forecast.seconds / statistics.median(taken) - 1
        print(f"{situation}, {name}: {1e3 * forecast.seconds:.0f} ms, measured {1e3 * taken[0]:.0f}", file=sys.stderr, flush=True)
        yield {
            **situation._asdict(), "name": name, "predicted": forecast.seconds, "measured": taken, "off": off,
            "binds": forecast.binds, "spent": forecast.spent, "waits": path_shares.predicted(forecast.spent),
            "waited": trials[0][1], "slowdown": slowdown, "then": then, "lossy": forecast.lossy, "doubtful": forecast.doubtful,
            "topology": forecast.topology,
        }  # fmt: skip


def _trial(contender: Contender, shared: SharedSettings, rate: str, warmup: int) -> tuple[float, str | None]:
    """Return the median seconds of a step, and what most of it waited for, or None if the contender has no timeline."""
    with tempfile.TemporaryDirectory(prefix="psnode-predictions-", ignore_cleanup_errors=True) as folder:
        trial = run_trial(contender, shared, rate=rate, warmup=warmup, folder=Path(folder), seconds=900.0)
        return statistics.median(trial.steps), path_shares.measured(Path(folder) / "run", warmup + 1)


def within(rows: Sequence[Row], off: Callable[[Row], float] = lambda row: float(row["off"])) -> dict[str, float]:
    """Return the `median` and the `worst` error, and `most`, the error that nine of ten cells do not exceed.

    `off`: the error of a row. Raises ConfigurationError if there are no rows.
    """
    if not rows:
        raise ConfigurationError("every cell is predicted to take longer than --most: raise it, or add faster --rate")
    errors = sorted(abs(off(row)) for row in rows)
    return {
        "median": statistics.median(errors), "most": errors[max(0, -(-int(_SHARE * 100) * len(errors) // 100) - 1)],
        "worst": errors[-1],
    }  # fmt: skip


def regrets(rows: Sequence[Row]) -> list[float]:
    """Return for each situation the measured step time of the predicted winner, relative to that of the fastest contender."""
    return [_seconds(min(own, key=lambda row: float(row["predicted"]))) / min(map(_seconds, own)) for own in _by_situation(rows)]


def verdict_regrets(rows: Sequence[Row]) -> list[float]:
    """Return for each situation the measured step time of what the verdict names, relative to that of the fastest contender.

    The verdict is that of `psnode plan` on the predicted step times of the measured contenders. Contenders that it never names,
    because their accuracy is doubtful, are left out.
    """
    found = []
    for own in _by_situation(rows):
        named = judge([_forecast(row) for row in own]).best.label
        able = [row for row in own if row["name"] == named or not (row["lossy"] and row["doubtful"])]
        found.append(next(_seconds(row) for row in able if row["name"] == named) / min(map(_seconds, able)))
    return found


def _forecast(row: Row) -> Forecast:
    scheme = row["name"].partition(" under --topology ")[0]
    return Forecast(
        scheme, row["predicted"], {}, 0.0, "", 0, lossy=row["lossy"], doubtful=row["doubtful"], topology=row["topology"]
    )


def _by_situation(rows: Sequence[Row]) -> list[list[Row]]:
    found = dict[tuple[str, str, int], list[Row]]()
    for row in rows:
        found.setdefault((row["network"], row["rate"], row["workers"]), []).append(row)
    return list(found.values())


def _seconds(row: Row) -> float:
    return float(statistics.median(row["measured"]))


def _foot(result: Result) -> str:
    rows = result["rows"]
    lost = sorted(regrets(rows))
    parts = [
        f"Error: {_shown(within(rows))}.",
        *(f"{kind}: {_shown(within(own))}." for kind, own in _by_kind(rows).items()),
        f"Chosen over best: median {statistics.median(lost):.3f}, worst {lost[-1]:.3f}.",
    ]
    if all("doubtful" in row for row in rows):
        parts.append(f"Named by the verdict, over the best: worst {max(verdict_regrets(rows)):.3f}.")
    if all("then" in row for row in rows):
        parts.append(f"At the machine's speed beside each cell: {_shown(within(rows, _off_then))}.")
    if known := [row for row in rows if row.get("waited")]:
        right = sum(row["waits"] == row["waited"] for row in known)
        parts.append(f"What most of a step waits for is predicted correctly in {right} of {len(known)} cells.")
    return " ".join(parts)


def _by_kind(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of psnode's schemes and those of DDP's hooks, as far as there are both."""
    hooks = [row for row in rows if row["name"].startswith("DDP ")]
    schemes = [row for row in rows if row not in hooks]
    return {"Schemes of psnode": schemes, "Hooks of DDP": hooks} if schemes and hooks else {}


def _shown(errors: Mapping[str, float]) -> str:
    median, most, worst = (f"{100 * errors[name]:.1f} %" for name in ("median", "most", "worst"))
    return f"median {median}, nine of ten cells within {most}, worst {worst}"


def _off_then(row: Row) -> float:
    return float(row["then"] / _seconds(row) - 1)


def _passed(result: Result) -> bool:
    errors = within(result["rows"])
    return errors["median"] <= MEDIAN and errors["most"] <= MOST_OF and errors["worst"] <= WORST


COLUMNS = (
    Column("network", "{network}", left=True),
    Column("rate", "{rate}"),
    Column("workers", "{workers}"),
    Column("contender", "{name}", left=True),
    Column("predicted, ms", lambda row: f"{1e3 * row['predicted']:.1f}"),
    Column("measured, ms", lambda row: f"{1e3 * _seconds(row):.1f}"),
    Column("off, %", lambda row: f"{100 * row['off']:+.1f}"),
    Column("passes beside it", lambda row: f"{row['slowdown']:.2f}" if "slowdown" in row else ""),
    Column("off at this speed, %", lambda row: f"{100 * _off_then(row):+.1f}" if "then" in row else ""),
    Column("waits for", lambda row: row.get("waits", ""), left=True),
    Column("waited for", lambda row: row.get("waited") or "", left=True),
)
STUDY = Study(
    Options,
    measure,
    COLUMNS,
    head=lambda result: (
        f"Emulated hosts that share the cores; {result['rounds']} rounds of {result['steps']} steps. Misses first."
    ),
    foot=_foot,
    order=lambda row: -abs(row["off"]),
    passed=_passed,
)


if __name__ == "__main__":
    sys.exit(main(STUDY))
