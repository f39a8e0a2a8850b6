"""`python -m studies.choices`: step times with `--plan auto`, compared with those of the schemes to choose from; needs root.

On emulated hosts, each network trains under the scheme, under bf16, under dense, and under the scheme with --plan auto. With
--groups it also trains under plans for the scheme: those of MergeComp and SeCoPa, and the fastest one that `psnode plan
--groups best` predicts. In every round the contenders run one after another, so that changes of the machine's speed affect all
of them. The trial steps of --plan auto are not part of the measured steps. All hosts share this machine's cores.

A choice is accepted if its step is at most 2 % slower than that of the fastest of the three schemes, among which --plan auto
chooses. This bound was set before the first measurement. Plans of groups are shown, and not counted.
"""

from __future__ import annotations

import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from psnode.bench.contest.contender_run import run_trial
from psnode.bench.contest.contenders import Psnode, SharedSettings
from psnode.bench.contest.labs import BURST, ROUND_TRIP
from psnode.config.amounts import rate_of
from psnode.config.cores import usable_cores
from psnode.config.declaration import option
from psnode.config.load import load
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.planning.search.plan_search import PlanSearch
from psnode.jobs.planning.search.rehearsal import quickest, rehearse
from psnode.jobs.planning.search.ways import MERGECOMP, SECOPA
from studies.harness import Column, Found, Result, Row, Study, main

MOST = 1.02
_AUTO = "--plan auto"


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.choices`."""

    network: tuple[str, ...] = option(("LeNet", "ResNet18"), "Repeat for more.", repeated=True)
    rate: tuple[str, ...] = option(("10mbit", "100mbit", "1gbit", "none"), "Of the links; repeat for more.", repeated=True)
    workers: int = option(2, "On hosts of their own.", minimum=1, metavar="P", aliases=("-n",))
    scheme: str = option("polar-2bit", "The scheme that dense or bf16 may replace.")
    groups: bool = option(False, "Also train with the groups of MergeComp, of SeCoPa, and of the fastest predicted plan.")
    batch: int = option(16, "Examples in a batch.", minimum=1)
    steps: int = option(20, "Steps to measure.", minimum=2)
    warmup: int = option(4, "Steps before them.", minimum=1)
    rounds: int = option(3, "How often every contender is measured.", minimum=1)


def measure(options: Options) -> Found:
    """Return a row for each network and rate. `measured`: the seconds of a step by contender and round."""
    rows = []
    for network in options.network:
        shared = SharedSettings(
            network=network, workers=options.workers, batch=options.batch, steps=options.warmup + options.steps + 1
        )
        planned = _Planned(network, options) if options.groups else None
        for rate in options.rate:
            flags = dict.fromkeys((options.scheme, "bf16", "dense"))
            with tempfile.TemporaryDirectory(prefix="psnode-plans-") as folder:
                plans = {} if planned is None else planned.save(rate, Path(folder))
                every = {**{name: name for name in flags}, **plans, _AUTO: f"{options.scheme} {_AUTO}"}
                measured: dict[str, list[float]] = {name: [] for name in every}
                for _ in range(options.rounds):
                    for name, text in every.items():
                        measured[name].append(_median(text, shared, rate, options.warmup))
                        print(f"{network}, {rate}, {name}: {1e3 * measured[name][-1]:.1f} ms", file=sys.stderr, flush=True)
            rows.append({"network": network, "rate": rate, "measured": measured, "slower": slower(measured, flags)})
    return Found(rows)


class _Planned:
    """Plans for the scheme of `options`, made from one measurement of `network` on this machine."""

    def __init__(self, network: str, options: Options) -> None:
        base = {"network": network, "dataset": "synthetic", "batch_size": options.batch, "threads": 1, "lr": 0.01}
        config = load(base | Psnode(options.scheme).settings, {})
        self._workers = options.workers
        self._search, self._profile = PlanSearch.measured(options.scheme, config)

    def save(self, rate: str, folder: Path) -> dict[str, str]:
        """Save the plans for links of a rate. Return the flags of train for each, by the name of the contender."""
        speed = None if rate == "none" else rate_of(rate)
        scenario = Scenario(self._workers, speed, ROUND_TRIP, usable_cores(), shared=True, burst=BURST)
        ways = self._search.ways(self._profile, scenario)
        listed = ways.compared()
        by_name = {way.name: way for way in listed}
        again = rehearse(self._search, ways, listed)
        best = quickest(again) if again else listed[0]
        chosen = {"best groups": best, **{name: by_name[name] for name in (MERGECOMP, SECOPA) if name in by_name}}
        found = {}
        for name, way in chosen.items():
            plan, file = self._search.file(ways, way, self._workers, "studies.choices"), folder / f"{way.name}.json"
            plan.save(file)
            found[name] = f"--plan {shlex.quote(str(file))}"
        return found


def _median(flags: str, shared: SharedSettings, rate: str, warmup: int) -> float:
    with tempfile.TemporaryDirectory(prefix="psnode-choices-", ignore_cleanup_errors=True) as folder:
        trial = run_trial(Psnode(flags), shared, rate=rate, warmup=warmup, folder=Path(folder), seconds=900.0)
    return statistics.median(trial.steps)


def slower(measured: Mapping[str, Sequence[float]], schemes: Iterable[str]) -> float:
    """Return the median step time with --plan auto, relative to that of the fastest of `schemes`."""
    return statistics.median(measured[_AUTO]) / min(statistics.median(measured[name]) for name in schemes)


def _columns(result: Result) -> Sequence[Column]:
    names = list(result["rows"][0]["measured"])
    return [
        Column("network", "{network}", left=True),
        Column("rate", "{rate}"),
        *(Column(f"{name}, ms", _shown(name)) for name in names),
        Column("auto over best", "{slower:.3f}"),
    ]


def _shown(name: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        times = sorted(row["measured"][name])
        return f"{1e3 * statistics.median(times):.1f} ({1e3 * times[0]:.1f} to {1e3 * times[-1]:.1f})"

    return cell


STUDY = Study(
    Options,
    measure,
    _columns,
    head=lambda result: f"Medians of {result['rounds']} rounds of {result['steps']} steps, the least and the most in brackets.",
    passed=lambda result: all(row["slower"] <= MOST for row in result["rows"]),
)


if __name__ == "__main__":
    sys.exit(main(STUDY))
