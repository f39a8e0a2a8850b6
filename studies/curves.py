"""`python -m studies.curves`: predicted step times by the number of workers, under several schemes and topologies.

Every worker has its own host with a link of its own; `psnode plan` predicts the steps from one profile. The profile of
--network is measured in this process, or read from --profile. Predictions for up to six workers were compared with real jobs
(docs/results); for more workers, only the model supports them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psnode.config.amounts import rate_of
from psnode.config.declaration import option
from psnode.errors import ConfigurationError
from psnode.jobs.planning.forecast import forecasts
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.routing.routed_groups import USUAL
from psnode.jobs.planning.scenario import Scenario
from studies.harness import Column, Found, Result, Study, main
from studies.predictions import profile_of

MEASURED = 6  # workers of the largest real jobs with which predictions were compared
_ROUND_TRIP = 2e-4
_DDP = "DDP fp32"


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.curves`."""

    network: str = option("ResNet18", "Of psnode or torchvision.")
    profile: str = option("", "A file of psnode plan --save-profile, instead of measuring; it names the network.", metavar="FILE")
    rate: str = option("1gbit", "Of every host's link.")
    host_cores: int = option(16, "Of every host.", minimum=1)
    workers: tuple[int, ...] = option(
        (2, 4, 8, 16, 32, 64, 128, 256), "Repeat for more.", minimum=1, repeated=True, metavar="P", aliases=("-n",)
    )
    scheme: tuple[str, ...] = option(("dense", "polar-2bit", "topk"), "Repeat for more.", repeated=True)
    topology: tuple[str, ...] = option((USUAL, "mesh", "gather"), "As for train; repeat for more.", repeated=True)


def measure(options: Options) -> Found:
    """Return a row for each scheme and topology, and for DDP.

    A row has `name`, `topology`, and `seconds` by the number of workers (as text). Schemes that train refuses under a topology
    are left out. Raises ConfigurationError for a topology that cannot be predicted for one of these numbers of workers.
    """
    profile = Profile.load(Path(options.profile)) if options.profile else profile_of(options.network, options.scheme)
    scenario = Scenario(1, rate_of(options.rate), _ROUND_TRIP, options.host_cores)
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for workers in sorted(options.workers):
        there = Scenario(workers, scenario.rate, scenario.round_trip, scenario.cores)
        found = forecasts(profile, there, options.topology)
        missing = set(options.topology) - {each.topology for each in found if not each.peer}
        if missing:
            names = ", ".join(sorted(missing))
            raise ConfigurationError(f"{names}: train refuses all schemes, or a step of {workers} workers has too many frames")
        for each in found:
            if not each.peer or each.name == _DDP:
                rows.setdefault((each.name, "" if each.peer else each.topology), {})[str(workers)] = each.seconds
        print(f"{workers} workers", file=sys.stderr, flush=True)
    made = [{"name": name, "topology": topology, "seconds": seconds} for (name, topology), seconds in sorted(rows.items())]
    return Found(made, {"model": profile.model, "passes": profile.passes})


def draw(result: Result, path: Path) -> None:
    """Draw step times over the number of workers, on logarithmic scales. A line marks the size of the largest measured jobs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    drawn = sorted({row["topology"] for row in result["rows"] if row["topology"]})
    styles = dict(zip(drawn, ("-", "--", ":", "-."), strict=False))
    colours = {name: f"C{place}" for place, name in enumerate(dict.fromkeys(row["name"] for row in result["rows"]))}
    for row in result["rows"]:
        sizes = sorted(map(int, row["seconds"]))
        label = f"{row['name']}, {row['topology']}" if row["topology"] else row["name"]
        axes.plot(
            sizes, [row["seconds"][str(size)] for size in sizes], styles.get(row["topology"], "-"), color=colours[row["name"]],
            label=label, marker=".",
        )  # fmt: skip
    axes.axhline(result["passes"], color="grey", linewidth=0.8, label="passes alone")
    axes.axvline(MEASURED, color="grey", linewidth=0.8, linestyle=":", label="largest measured jobs")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="predicted seconds of a step")
    axes.set_title(f"{result['model']}, links of {result['rate']}, {result['host_cores']} cores a host", fontsize="medium")
    axes.legend(fontsize="small", frameon=False, ncols=2)
    figure.savefig(path, dpi=100)


def _cell(workers: int) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"{1e3 * row['seconds'][str(workers)]:,.0f}" if str(workers) in row["seconds"] else ""


def columns(result: Result) -> Sequence[Column]:
    """Return the columns: scheme, topology, and the milliseconds of a step for each number of workers."""
    sizes = sorted(result["workers"])
    named = [Column("scheme", "{name}", left=True), Column("topology", "{topology}", left=True)]
    return [*named, *(Column(str(size), _cell(size)) for size in sizes)]


STUDY = Study(
    Options,
    measure,
    columns,
    head=lambda result: (
        f"Predicted milliseconds of a step of {result['model']} by the number of workers, on links of {result['rate']} and "
        f"hosts of {result['host_cores']} cores; passes alone take {1e3 * result['passes']:,.0f} ms. Only jobs of up to "
        f"{MEASURED} workers were compared with measured ones."
    ),
    plot=draw,
)

if __name__ == "__main__":
    sys.exit(main(STUDY))
