"""`python -m studies.groupings`: predicted steps of ways to group a model's tensors, at several rates of the links.

For each network the passes are measured, and the curves of the scheme and of the codecs that may share its plan. Everything else
is computed: the step of every grouping by psnode.jobs.planning.job_step, and by the model that the search uses.

The ways are: one group; the best two and three groups of MergeComp; a group a tensor; the rule of psnode.plan.rule; searches with
the scheme's codec alone, with all codecs, and with all codecs and groups in parts; and SeCoPa's decisions for each gradient, by
the sum of an exchange's stages, and by stages side by side. A search gives its five best groupings, and those of the searches
before it; the one that is quickest in the simulation counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psnode.bench.contest.contenders import Psnode
from psnode.config import Config
from psnode.config.amounts import rate_of
from psnode.config.declaration import option
from psnode.config.load import load
from psnode.config.resolve import resolve
from psnode.jobs.planning.job_step import job_step
from psnode.jobs.planning.profile import Profile, SchemeCosts
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.planning.search.grouping import CodecCandidate, GroupChoice, SmallTensorRules, grouped_costs, planned_costs
from psnode.jobs.planning.search.labels import searched
from psnode.jobs.planning.search.measured_candidates import codec_pairs, measure_candidates
from psnode.jobs.planning.search.mergecomp import merged
from psnode.jobs.planning.search.secopa import secopa
from psnode.jobs.planning.search.step_clocks import StepClocks, joined_small
from psnode.plan.groups import IDENTITY, Tensor
from psnode.plan.rule import plan_of
from studies.harness import Column, Found, Row, Study, main

_ROUND_TRIP = 2e-4
_SIMULATED = 5  # groupings of a search
ONE, TWO, THREE, EACH, RULE = "one group", "MergeComp, two", "MergeComp, three", "a group a tensor", "today's rule"
OWN, ALL, PARTS = "searched, own codec", "searched, all codecs", "searched, all, in parts"
SUMS, SIDES = "SeCoPa", "SeCoPa, side by side"


@dataclass(frozen=True)
class Options:
    """Options of the command."""

    network: tuple[str, ...] = option(("LeNet",), "Repeat for more.", repeated=True)
    rate: tuple[str, ...] = option(("10mbit", "100mbit", "1gbit", "10gbit"), "Of the links; repeat for more.", repeated=True)
    scheme: str = option("topk", "A scheme, and flags of `psnode train`.")
    workers: int = option(4, "Each on a host of its own.", minimum=1, metavar="P", aliases=("-n",))
    host_cores: int = option(4, "Of every host; the master decodes on all but one.", minimum=1)
    batch: int = option(16, "Examples of a worker's step.", minimum=1)


class Way(NamedTuple):
    """A way to group: its `name`, its costs, and the shares of all coordinates that each candidate sends.

    `seconds`: of a step in the model of the search; None for ways that it cannot express.
    """

    name: str
    costs: SchemeCosts
    shares: Mapping[str, float]
    seconds: float | None


def measure(options: Options) -> Found:
    """Return a row for each network, rate and way.

    `seconds`: of a step in the simulation; `modelled`: in the model of the search; `sent`: bytes of a worker; `shares`: see Way.
    """
    rows = list[dict[str, Any]]()
    for network in options.network:
        base = {"network": network, "dataset": "synthetic", "batch_size": options.batch, "threads": 1, "lr": 0.01}
        config = load(base | Psnode(options.scheme).settings, {})
        pairs = codec_pairs(options.scheme, config)
        profile, candidates = measure_candidates(
            config,
            pairs,
            lambda line, network=network: print(f"{network}: {line}", file=sys.stderr, flush=True),  # type: ignore[misc]
        )
        for rate in options.rate:
            scenario = Scenario(options.workers, None if rate == "none" else rate_of(rate), _ROUND_TRIP, options.host_cores)
            for way in ways(profile, candidates, scenario, config):
                seconds = job_step(profile, way.costs, scenario).seconds
                rows.append(
                    {
                        "network": network, "rate": rate, "title": f"{network}, {rate}", "way": way.name,
                        "groups": len(way.costs.groups), "seconds": seconds, "modelled": way.seconds,
                        "passes": profile.passes, "sent": sum(group.up for group in way.costs.groups), "shares": dict(way.shares),
                    }
                )  # fmt: skip
    return Found(rows)


def ways(profile: Profile, candidates: Sequence[CodecCandidate], scenario: Scenario, config: Config) -> Iterator[Way]:
    """Yield all ways to group the profile's tensors. The first candidate is the scheme's own."""
    rules, own = SmallTensorRules.of(config), candidates[:1]
    alone, mixed = StepClocks(profile, own, scenario, rules), StepClocks(profile, candidates, scenario, rules)
    count = len(profile.tensors)

    def way(name: str, groups: Sequence[GroupChoice], seconds: float | None = None) -> Way:
        sizes = {tensor.name: tensor.nbytes // 4 for tensor in profile.tensors}
        shares = dict.fromkeys((candidate.flags for candidate in candidates), 0.0)
        for group in groups:
            shares[group.flags] += sum(sizes[each] for each in group.names) / sum(sizes.values())
        return Way(name, grouped_costs(profile.tensors, groups, candidates, rules), shares, seconds)

    for name, groups in ((ONE, 1), (TWO, 2), (THREE, 3)):
        if groups <= len(joined_small(profile.tensors, 0)):
            found = merged(alone, groups)
            yield way(name, found.groups, found.seconds)
    bare = next((place for place, candidate in enumerate(candidates) if candidate.codec == IDENTITY), 0)
    coded = [rules.codes(tensor.name, tensor.shape, own[0].codec) for tensor in profile.tensors]
    single = mixed.grouping(range(1, count + 1), [0 if each else bare for each in coded])
    yield way(EACH, single.groups, single.seconds)
    plan = plan_of([Tensor(each.name, each.shape) for each in profile.tensors], resolve(config), config)
    yield Way(RULE, planned_costs(plan, profile.tensors, own[0]), {own[0].flags: 1.0}, None)
    options = list[Way]()
    for name, clocks, counts in ((OWN, alone, (1,)), (ALL, mixed, (1,)), (PARTS, mixed, (1, 2, 4))):
        options += [way(name, each.groups, each.seconds) for each in searched(clocks, best=_SIMULATED, parts=counts)]
        yield min(options, key=lambda each: job_step(profile, each.costs, scenario).seconds)._replace(name=name)
    if len(candidates) > 1:
        yield way(SUMS, secopa(mixed))
        yield way(SIDES, secopa(mixed, overlapped=True))


def _modelled(row: Row) -> str:
    return "" if row["modelled"] is None else f"{1e3 * row['modelled']:.1f}"


def _shares(row: Row) -> str:
    named = {flags.partition(" --feedback")[0]: share for flags, share in row["shares"].items() if share}
    return ", ".join(f"{100 * share:.0f} % {name}" for name, share in named.items())


COLUMNS = (
    Column("way", "{way}", left=True),
    Column("groups", "{groups}"),
    Column("step, ms", lambda row: f"{1e3 * row['seconds']:.1f}"),
    Column("over passes", lambda row: f"{row['seconds'] / row['passes']:.2f}"),
    Column("model of the search, ms", _modelled),
    Column("sent, MB", lambda row: f"{row['sent'] / 1e6:.3f}"),
    Column("coordinates by codec", _shares, left=True),
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
