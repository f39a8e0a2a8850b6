"""`python -m studies.groupings`: predicted step times of several ways to group a model's tensors, at several rates of the links.

For each network the study measures the passes, and the times of the scheme and of the other codecs that may share its plan, as
functions of the size. Everything else is computed: the step of every grouping, once by the simulation in
psnode.jobs.planning.job_step, and once by the model of the search.

The ways to group are:

* one group
* MergeComp's best two groups, and its best three groups
* one group for each tensor
* the rule of psnode.plans.rule
* searches: with only the scheme's codec, with all codecs, and with all codecs and groups in parts
* SeCoPa's decisions for each gradient: with the sum of an exchange's stages, and with overlapped stages

The candidates of a search are its five best groupings and those of the previous searches. The result of the search is the
candidate that is quickest in the simulation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from psnode.bench.contest.contenders import Psnode
from psnode.config.amounts import rate_of
from psnode.config.declaration import option
from psnode.config.load import load
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.planning.search.plan_search import PlanSearch
from psnode.jobs.planning.search.ways import Way, Ways
from studies.harness import Column, Found, Row, Study, main

_ROUND_TRIP = 2e-4


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.groupings`."""

    network: tuple[str, ...] = option(("LeNet",), "Repeat for more.", repeated=True)
    rate: tuple[str, ...] = option(("10mbit", "100mbit", "1gbit", "10gbit"), "Of the links; repeat for more.", repeated=True)
    scheme: str = option("topk", "A scheme, and flags of `psnode train`.")
    workers: int = option(4, "Each on a host of its own.", minimum=1, metavar="P", aliases=("-n",))
    host_cores: int = option(4, "Of every host; the master decodes on all but one.", minimum=1)
    batch: int = option(16, "Examples of a worker's step.", minimum=1)


def measure(options: Options) -> Found:
    """Return a row for each network, rate and way.

    `seconds`: the time of a step in the simulation; `modelled`: its time in the model of the search; `sent`: the bytes that a
    worker sends in a step; `codecs`: the share of all coordinates that each codec gets.
    """
    rows = list[dict[str, Any]]()
    for network in options.network:
        base = {"network": network, "dataset": "synthetic", "batch_size": options.batch, "threads": 1, "lr": 0.01}
        config = load(base | Psnode(options.scheme).settings, {})
        search, profile = PlanSearch.measured(
            options.scheme,
            config,
            lambda line, network=network: print(f"{network}: {line}", file=sys.stderr, flush=True),  # type: ignore[misc]
        )
        for rate in options.rate:
            scenario = Scenario(options.workers, None if rate == "none" else rate_of(rate), _ROUND_TRIP, options.host_cores)
            for way in ways(search.ways(profile, scenario)):
                rows.append(
                    {
                        "network": network, "rate": rate, "title": f"{network}, {rate}", "way": way.name,
                        "groups": len(way.costs.groups), "seconds": way.step.seconds, "modelled": way.modelled,
                        "passes": profile.passes, "sent": way.sent,
                        "codecs": way.codecs(profile, options.scheme),
                    }
                )  # fmt: skip
    return Found(rows)


def ways(found: Ways) -> Iterator[Way]:
    """Yield all ways to group the tensors, in the order of the tables."""
    alone = [found.mergecomp(1), found.mergecomp(2), found.mergecomp(3), found.each_tensor(), found.rule()]
    papers = [found.secopa(), found.secopa(overlapped=True)]
    yield from (way for way in (*alone, *found.searched(), *papers) if way is not None)


def _modelled(row: Row) -> str:
    return "" if row["modelled"] is None else f"{1e3 * row['modelled']:.1f}"


COLUMNS = (
    Column("way", "{way}", left=True),
    Column("groups", "{groups}"),
    Column("step, ms", lambda row: f"{1e3 * row['seconds']:.1f}"),
    Column("over passes", lambda row: f"{row['seconds'] / row['passes']:.2f}"),
    Column("model of the search, ms", _modelled),
    Column("sent, MB", lambda row: f"{row['sent'] / 1e6:.3f}"),
    Column("coordinates by codec", "{codecs}", left=True),
)
STUDY = Study(
    Options,
    measure,
    COLUMNS,
    head=lambda result: (
        f"{result['workers']} workers under {result['scheme']}, on hosts of {result['host_cores']} cores; "
        f"batches of {result['batch']}."
    ),
    tables="title",
)


if __name__ == "__main__":
    sys.exit(main(STUDY))
