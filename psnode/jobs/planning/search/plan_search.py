"""The search for the groups of a run's own scheme: its measurements, and the plan files of its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from psnode.config import Config
from psnode.config.amounts import milliseconds
from psnode.config.names import DENSE
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError
from psnode.jobs.planning.profile import Profile, SchemeCosts
from psnode.jobs.planning.routing.routed_groups import USUAL
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.planning.search.grouping import CodecCandidate
from psnode.jobs.planning.search.measured_candidates import OF_CODING, codec_pairs, measure_candidates
from psnode.jobs.planning.search.ways import Way, Ways
from psnode.plans.groups import IDENTITY, Plan
from psnode.plans.plan_file import PlanFile, stated_settings
from psnode.plans.prediction import Prediction


@dataclass(frozen=True)
class PlanSearch:
    """A search among groupings for the scheme `name`, in a run with the settings `config`.

    `candidates`: the measured candidates, with which groups may be coded. `ranks`: as in measure_candidates. `rehearsed`: the
    costs of plans that were measured, by their JSON (psnode.jobs.planning.search.rehearsal).
    """

    name: str
    config: Config
    candidates: tuple[CodecCandidate, ...]
    ranks: int = 1
    rehearsed: dict[str, SchemeCosts] = field(default_factory=dict, compare=False)

    @classmethod
    def measured(
        cls, name: str, config: Config, tell: Callable[[str], None] = lambda line: None, *, ranks: int = 1
    ) -> tuple[PlanSearch, Profile]:
        """Measure the candidates, and return the search and the profile of the model.

        See psnode.jobs.planning.search.measured_candidates.measure_candidates.
        """
        profile, candidates = measure_candidates(config, codec_pairs(name, config), tell, ranks=ranks)
        return cls(name, config, candidates, ranks), profile

    def ways(self, profile: Profile, scenario: Scenario, topology: str = USUAL) -> Ways:
        """Return the ways to group the tensors in a scenario, under the setting `topology`."""
        return Ways(profile, self.candidates, scenario, self.config, topology)

    def settings_of(self, plan: Plan) -> Config:
        """Return the settings of a run that follows a plan of this search.

        If no group is coded, the scheme becomes dense, since any other scheme would code the changes of the weights. Raises
        ConfigurationError if dense would change the training, because its learning rate or momentum differs.
        """
        if any(segment.codec != IDENTITY for segment in plan.segments):
            return self.config
        own, dense = resolve(self.config), resolve(Config(scheme=DENSE))
        if (own.lr, own.momentum) != (dense.lr, dense.momentum):
            raise ConfigurationError(
                f"the quickest groups of {self.name} code nothing, and dense has another learning rate or momentum: "
                "plan with --scheme dense"
            )
        return replace(self.config, **{name: getattr(Config(), name) for name in OF_CODING} | {"scheme": DENSE})

    def file(self, ways: Ways, way: Way, workers: int, source: str) -> PlanFile:
        """Return the plan file of a way to group the tensors. `source`: a text that tells users the prediction's origin.

        Raises the errors of settings_of.
        """
        plan = ways.plan(way)
        settings = self.settings_of(plan)
        chosen, named = stated_settings(settings), self.name
        if settings is not self.config:
            named = f"{self.name}, none of which is coded,"
        prediction = Prediction(way.step.seconds, workers, source, way.step.binds, ways.spans(way))
        told = (f"{named} in groups by {way.name}", f"{milliseconds(way.step.seconds)} a step are predicted")
        return PlanFile(plan, chosen, prediction, told, ways.topology)
