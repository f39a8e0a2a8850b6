"""Ways to group a model's tensors, each with its costs and plan: by the rule, by searches, and by the methods of two papers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from psnode.config import Config
from psnode.config.amounts import amount, milliseconds
from psnode.config.resolve import resolve
from psnode.jobs.planning.job_step import StepTime, job_step, step_spans
from psnode.jobs.planning.profile import Profile, SchemeCosts
from psnode.jobs.planning.routing.routed_groups import USUAL, RoutedGroups, on_routes, routed
from psnode.jobs.planning.routing.routed_step import TooLargeError, is_small, routed_step
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.planning.search.codec_curves import mixed_curves
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
from psnode.jobs.planning.search.stage_loads import StageLoads
from psnode.jobs.planning.search.step_clocks import StepClocks, joined_small
from psnode.plans.groups import IDENTITY, Plan, Tensor
from psnode.plans.prediction import PredictedSpan
from psnode.plans.roles import Layout
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


class _Step(NamedTuple):
    """The costs of a plan's groups, and the step that is simulated with them."""

    costs: SchemeCosts
    step: StepTime


class Ways:
    """The ways to group the tensors of `profile` under the settings `config`, on the hosts of a scenario.

    `candidates`: the ways to code a group; the first one is the scheme's own. `topology`: the setting of this name. The search
    has a rough model of a topology (StageLoads), and the groupings that it finds are simulated on their routes.
    """

    def __init__(
        self,
        profile: Profile,
        candidates: Sequence[CodecCandidate],
        scenario: Scenario,
        config: Config,
        topology: str = USUAL,
    ) -> None:
        self.profile, self.candidates, self._scenario, self._config = profile, tuple(candidates), scenario, config
        self.topology, self._rules = topology, SmallTensorRules.of(config)
        if not Config(topology=topology).sends_weights:
            self.candidates = candidates = _without_downlinks(self.candidates)
        loads = None
        if topology != USUAL:
            self._plan_by_rule = routed(profile, self.candidates[0].flags, topology, scenario.workers).plan
            loads = StageLoads.of(self._routed(self._plan_by_rule), topology)
        else:
            self._plan_by_rule = plan_of(self._tensors(), resolve(config), config)
        self._own = StepClocks(profile, candidates[:1], scenario, self._rules, loads=loads)
        self._all = StepClocks(profile, candidates, scenario, self._rules, loads=loads)

    def spans(self, way: Way) -> tuple[PredictedSpan, ...]:
        """Return the spans of the work in the predicted step of a way; none if its step has too many frames."""
        if self.topology == USUAL:
            return step_spans(self.profile, way.costs, self._scenario)
        groups = self._routed(self.plan(way), way.costs)
        return step_spans(self.profile, groups.costs, self._scenario, groups.routes) if is_small(groups) else ()

    def rule(self) -> Way:
        """Return the way in which the rule, psnode.plans.rule, groups the tensors."""
        return self._simulated(RULE, None, self._plan_by_rule)

    def mergecomp(self, groups: int = 0) -> Way | None:
        """Return MergeComp's way with `groups` groups or, if `groups` is 0, with as many as are worthwhile.

        Returns None if there are fewer tensors than groups, or if the step has too many frames to simulate.
        """
        if groups > len(joined_small(self.profile.tensors, 0)):
            return None
        found = merged(self._own, groups) if groups else merged_while_it_gains(self._own)
        return self._way({0: MERGECOMP, 1: ONE, 2: TWO, 3: THREE}[groups], found.groups, found.seconds)

    def secopa(self, *, overlapped: bool = False) -> Way | None:
        """Return SeCoPa's way.

        Returns None if the scheme's codec is the only candidate, or if the step has too many frames to simulate.
        `overlapped`: True to let the stages of an exchange overlap, as psnode.jobs.planning.search.secopa explains.
        """
        if len(self.candidates) < 2:
            return None
        return self._way(SIDES if overlapped else SECOPA, secopa(self._all, overlapped=overlapped))

    def each_tensor(self) -> Way | None:
        """Return the way with one group for every tensor, or None if its step has too many frames to simulate."""
        count = len(self.profile.tensors)
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
            tried = [self._way(name, each.groups, each.seconds) for each in searched(clocks, best=_SIMULATED, parts=parts)]
            met += [way for way in tried if way is not None]
            if met:
                best = min(met, key=lambda way: way.step.seconds)
                yield Way(name, best.groups, best.costs, best.step, best.modelled)

    def compared(self) -> list[Way]:
        """Return the ways for a table, the quickest first. Of equally quick ways, the way of the rule comes first.

        Ways whose step has too many frames to simulate are left out. Raises TooLargeError if the rule's way is one of them.
        """
        found = [self.rule(), *self.searched(), self.mergecomp(), self.mergecomp(2), self.secopa(), self.secopa(overlapped=True)]
        return sorted((way for way in found if way is not None), key=lambda way: way.step.seconds)

    def plan(self, way: Way) -> Plan:
        """Return the plan of a way."""
        return self._plan_by_rule if way.groups is None else self._grouped(way.groups)

    def _way(self, name: str, groups: tuple[GroupChoice, ...], modelled: float | None = None) -> Way | None:
        try:
            return self._simulated(name, groups, self._grouped(groups), modelled)
        except TooLargeError:
            return None

    def priced(self, way: Way, costs: SchemeCosts) -> Way:
        """Return `way` with `costs`, which were measured with its plan, and with the step that is simulated with them.

        The times at which gradients are ready and weights are needed remain those of the profile.
        """
        groups = tuple(
            replace(group, ready=before.ready, needed=before.needed)
            for group, before in zip(costs.groups, way.costs.groups, strict=True)
        )
        return replace(way, **self._step(self.plan(way), replace(costs, groups=groups))._asdict())

    def _simulated(self, name: str, groups: tuple[GroupChoice, ...] | None, plan: Plan, modelled: float | None = None) -> Way:
        # the plan's own groups are priced, since it has fewer parts if a codec or the optimizer does not accept smaller parts
        return Way(name, groups, *self._step(plan, self._costs(plan)), modelled)

    def _step(self, plan: Plan, costs: SchemeCosts) -> _Step:
        if self.topology == USUAL:
            return _Step(costs, job_step(self.profile, costs, self._scenario))
        found = self._routed(plan, costs)
        return _Step(found.costs, routed_step(self.profile, found, self._scenario, self.topology))

    def _routed(self, plan: Plan, costs: SchemeCosts | None = None) -> RoutedGroups:
        layout = Layout(self._scenario.workers, servers=Config(topology=self.topology).servers)
        return on_routes(self.profile, costs or self._costs(plan), plan, self.topology, layout)

    def _costs(self, plan: Plan) -> SchemeCosts:
        return planned_costs(plan, self.profile.tensors, self.candidates)

    def _grouped(self, groups: Sequence[GroupChoice]) -> Plan:
        codecs = {candidate.flags: candidate.codec for candidate in self.candidates}
        return grouped_plan(self._tensors(), groups, codecs, self._rules, whole_tensors=self._config.whole_tensors)

    def _tensors(self) -> list[Tensor]:
        return [Tensor(tensor.name, tensor.shape) for tensor in self.profile.tensors]


def _without_downlinks(candidates: tuple[CodecCandidate, ...]) -> tuple[CodecCandidate, ...]:
    """Return candidates with the weights of the candidate that codes nothing; if there is none, return `candidates`.

    The simulation takes the weights of the profile's scheme dense instead.
    """
    bare = next((each for each in candidates if each.codec == IDENTITY), None)
    return (
        candidates if bare is None else tuple(replace(each, curves=mixed_curves(each.curves, bare.curves)) for each in candidates)
    )


def way_table(scheme: str, ways: Sequence[Way], profile: Profile, topology: str = USUAL) -> list[str]:
    """Return the lines of a table of ways to group the tensors of `scheme` under a topology, after an empty line.

    For each way the table has the number of groups, the step, the bytes that a worker sends, and the candidates of the groups.
    """
    under = [] if topology == USUAL else [f"--topology {topology}"]
    found = ["", *under, f"{f'groups of {scheme}'[:27]:28}{'groups':>7}{'step':>10}{'sent':>11}  codecs"]
    for way in ways:
        step, sent = milliseconds(way.step.seconds), amount(way.sent)
        found.append(f"  {way.name:26}{len(way.costs.groups):>7}{step:>10}{sent:>11}  {way.codecs(profile, scheme)}")
    return found
