"""Ways to group a model's tensors, each with its costs and plan: by the rule, by searches, and by the methods of two papers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from psnode.config import Config
from psnode.config.amounts import amount, milliseconds
from psnode.config.resolve import resolve
from psnode.jobs.planning.job_step import StepTime, job_step, step_spans
from psnode.jobs.planning.profile import Profile, SchemeCosts
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.planning.search.grouping import (
    CodecCandidate,
    GroupChoice,
    SmallTensorRules,
    grouped_plan,
    planned_costs,
)
from psnode.jobs.planning.search.labels import searched
from psnode.jobs.planning.search.mergecomp import merged, merged_while_it_gains
from psnode.jobs.planning.search.secopa import secopa
from psnode.jobs.planning.search.step_clocks import StepClocks, joined_small
from psnode.plans.groups import Plan, Tensor
from psnode.plans.prediction import PredictedSpan
from psnode.plans.rule import plan_of

_SIMULATED = 5  # number of a search's groupings that are simulated; the quickest counts
_PARTS = (1, 2, 4)  # numbers of equal parts in which a group may travel
ONE, TWO, THREE, EACH = "one group", "MergeComp, two", "MergeComp, three", "a group a tensor"
RULE, MERGECOMP, SECOPA, SIDES = "rule", "MergeComp", "SeCoPa", "SeCoPa, side by side"
NAMES = {"mergecomp": MERGECOMP, "secopa": SECOPA}  # keys as they are spelled in an option
OWN, MIXED, IN_PARTS = "searched, own codec", "searched, all codecs", "searched, all, in parts"


@dataclass(frozen=True)
class Way:
    """A way to group the tensors: its `name`, its `costs`, and its simulated `step`.

    `groups`: its groups; None for the way of the rule (psnode.plans.rule). `modelled`: the seconds of a step in the model of
    the search; None for ways that this model cannot express.
    """

    name: str
    groups: tuple[GroupChoice, ...] | None
    costs: SchemeCosts
    step: StepTime
    modelled: float | None = None

    def codecs(self, profile: Profile, scheme: str) -> str:
        """Return a text with each codec's share of all coordinates. `scheme`: the name to show for the codec of the rule."""
        named = {flags.partition(" --feedback")[0]: share for flags, share in self.shares(profile).items()}
        return ", ".join(f"{100 * share:.0f} % {flags}" for flags, share in named.items()) or f"100 % {scheme}"

    @property
    def sent(self) -> int:
        """Bytes that a worker sends in a step."""
        return sum(group.up for group in self.costs.groups)

    def shares(self, profile: Profile) -> Mapping[str, float]:
        """Return each candidate's share of all coordinates, by the candidate's flags; empty for the way of the rule."""
        sizes = {tensor.name: tensor.nbytes / profile.nbytes for tensor in profile.tensors}
        found: dict[str, float] = {}
        for group in self.groups or ():
            found[group.flags] = found.get(group.flags, 0.0) + sum(sizes[name] for name in group.names)
        return found


class Ways:
    """The ways to group the tensors of `profile` under the settings `config`, on the hosts of a scenario.

    `candidates`: the ways to code a group; the first one is the scheme's own.
    """

    def __init__(self, profile: Profile, candidates: Sequence[CodecCandidate], scenario: Scenario, config: Config) -> None:
        self._profile, self._candidates, self._scenario, self._config = profile, tuple(candidates), scenario, config
        self._rules = SmallTensorRules.of(config)
        self._own = StepClocks(profile, candidates[:1], scenario, self._rules)
        self._all = StepClocks(profile, candidates, scenario, self._rules)

    def spans(self, way: Way) -> tuple[PredictedSpan, ...]:
        """Return the spans of the work in the predicted step of a way."""
        return step_spans(self._profile, way.costs, self._scenario)

    def rule(self) -> Way:
        """Return the way in which the rule, psnode.plans.rule, groups the tensors."""
        costs = planned_costs(self._by_rule(), self._profile.tensors, self._candidates)
        return Way(RULE, None, costs, job_step(self._profile, costs, self._scenario))

    def mergecomp(self, groups: int = 0) -> Way | None:
        """Return MergeComp's way with `groups` groups or, if `groups` is 0, with as many as are worthwhile.

        Returns None if there are fewer tensors than groups.
        """
        if groups > len(joined_small(self._profile.tensors, 0)):
            return None
        found = merged(self._own, groups) if groups else merged_while_it_gains(self._own)
        return self._way({0: MERGECOMP, 1: ONE, 2: TWO, 3: THREE}[groups], found.groups, found.seconds)

    def secopa(self, *, overlapped: bool = False) -> Way | None:
        """Return SeCoPa's way, or None if the scheme's codec is the only candidate.

        `overlapped`: True to let the stages of an exchange overlap, as psnode.jobs.planning.search.secopa explains.
        """
        if len(self._candidates) < 2:
            return None
        return self._way(SIDES if overlapped else SECOPA, secopa(self._all, overlapped=overlapped))

    def each_tensor(self) -> Way:
        """Return the way with one group for every tensor."""
        count = len(self._profile.tensors)
        found = self._own.grouping(range(1, count + 1), [0] * count)
        return self._way(EACH, found.groups, found.seconds)

    def searched(self) -> Iterator[Way]:
        """Yield the best way of three searches with increasing freedom.

        The first search uses only the scheme's own codec, the second one all codecs, and the third one also sends groups in
        parts.
        """
        met = list[Way]()
        for name, clocks, parts in ((OWN, self._own, (1,)), (MIXED, self._all, (1,)), (IN_PARTS, self._all, _PARTS)):
            if self._config.whole_tensors and parts != (1,):
                return
            met += [self._way(name, each.groups, each.seconds) for each in searched(clocks, best=_SIMULATED, parts=parts)]
            best = min(met, key=lambda way: way.step.seconds)
            yield Way(name, best.groups, best.costs, best.step, best.modelled)

    def compared(self) -> list[Way]:
        """Return the ways for a table, the quickest first. Of equally quick ways, the way of the rule comes first."""
        found = [self.rule(), *self.searched(), self.mergecomp(), self.mergecomp(2), self.secopa(), self.secopa(overlapped=True)]
        return sorted((way for way in found if way is not None), key=lambda way: way.step.seconds)

    def plan(self, way: Way) -> Plan:
        """Return the plan of a way."""
        return self._by_rule() if way.groups is None else self._grouped(way.groups)

    def _way(self, name: str, groups: tuple[GroupChoice, ...], modelled: float | None = None) -> Way:
        # the plan's own groups are priced, since it has fewer parts if a codec or the optimizer does not accept smaller parts
        costs = planned_costs(self._grouped(groups), self._profile.tensors, self._candidates)
        return Way(name, groups, costs, job_step(self._profile, costs, self._scenario), modelled)

    def _grouped(self, groups: Sequence[GroupChoice]) -> Plan:
        codecs = {candidate.flags: candidate.codec for candidate in self._candidates}
        return grouped_plan(self._tensors(), groups, codecs, self._rules, whole_tensors=self._config.whole_tensors)

    def _by_rule(self) -> Plan:
        return plan_of(self._tensors(), resolve(self._config), self._config)

    def _tensors(self) -> list[Tensor]:
        return [Tensor(tensor.name, tensor.shape) for tensor in self._profile.tensors]


def way_table(scheme: str, ways: Sequence[Way], profile: Profile) -> list[str]:
    """Return the lines of a table of ways to group the tensors of `scheme`, after an empty line.

    For each way the table has the number of groups, the step, the bytes that a worker sends, and the candidates of the groups.
    """
    found = ["", f"{f'groups of {scheme}'[:27]:28}{'groups':>7}{'step':>10}{'sent':>11}  codecs"]
    for way in ways:
        step, sent = milliseconds(way.step.seconds), amount(way.sent)
        found.append(f"  {way.name:26}{len(way.costs.groups):>7}{step:>10}{sent:>11}  {way.codecs(profile, scheme)}")
    return found
