"""The variants that a report compares.

Completed runs that differ only in their seeds are one variant. Every other run is a variant of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from psnode.config.amounts import counted
from psnode.config.plain_json import to_json
from psnode.report.run import Run
from psnode.report.run_names import common_name, shortened

_SEED = "seed"
_OF_ONE_RUN = (_SEED, "train_dir", "resume")  # settings in which the runs of a variant may differ


@dataclass(frozen=True)
class Variant:
    """One or more runs that are drawn as one curve and have one row in tables.

    `number`: selects the colour. `short`: the name, with its middle cut out if it is long.
    """

    number: int
    name: str
    runs: tuple[Run, ...]
    short: str = field(default="", compare=False)

    @property
    def first(self) -> Run:
        """Return the first run. The other runs of the variant have the same settings, except for seed, `train_dir` and
        `resume`.
        """
        return self.runs[0]

    @property
    def seeds(self) -> str:
        """Return the seeds of the runs as text, in the order of the runs."""
        return ", ".join(str(run.settings.get(_SEED)) for run in self.runs)

    def mean(self, quantity: Callable[[Run], float | None]) -> float | None:
        """Return the mean of a quantity over the runs that have it; None if no run has it."""
        known = self._known(quantity)
        return float(np.mean(known)) if known else None

    def told(self, quantity: Callable[[Run], float | None], text: Callable[[float], str]) -> str | None:
        """Return the mean of a quantity as text; None if no run has the quantity.

        If several runs have it, the standard error of the mean is added.
        """
        known = self._known(quantity)
        if len(known) < 2:
            return text(known[0]) if known else None
        with np.errstate(over="ignore", invalid="ignore"):  # the files of a run may hold any values
            mean, error = float(np.mean(known)), float(np.std(known, ddof=1)) / len(known) ** 0.5
        return f"{text(mean)} ± {text(error)}"

    def _known(self, quantity: Callable[[Run], float | None]) -> list[float]:
        return [value for run in self.runs if (value := quantity(run)) is not None]


def variants(runs: Sequence[Run], *, each: bool = False) -> list[Variant]:
    """Return the variants that `runs` form, in the order of their first runs. If `each` is True, every run is a variant."""
    alike: dict[str, list[Run]] = {}
    for number, run in enumerate(runs):
        alike.setdefault(str(number) if each else _key(run), []).append(run)
    merged = {id(group[0]): group for group in alike.values() if _differ_by_seed(group)}
    inside = {id(run) for group in merged.values() for run in group[1:]}
    groups = [merged.get(id(run), [run]) for run in runs if id(run) not in inside]
    return _shortened([Variant(number, name, tuple(groups[number])) for number, name in enumerate(_names(groups))])


def each_run(found: Sequence[Variant]) -> list[Variant]:
    """Return a variant for every run in the variants `found`. Each has the colour of the variant that its run comes from."""
    return _shortened([Variant(variant.number, run.name, (run,)) for variant in found for run in variant.runs])


def _shortened(found: Sequence[Variant]) -> list[Variant]:
    return [replace(each, short=short) for each, short in zip(found, shortened([each.name for each in found]), strict=True)]


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Return a name for each group of runs.

    The name of a single run is its own. The name of several runs is their common name with the number of seeds. If another
    group has the same common name, it is the name of the first run with the number of other seeds.
    """
    common = [common_name([run.name for run in group]) if len(group) > 1 else "" for group in groups]
    names = []
    for group, pattern in zip(groups, common, strict=True):
        if not pattern:
            names.append(group[0].name)
        elif common.count(pattern) == 1 and any(map(str.isalnum, pattern)):
            names.append(f"{pattern} ({len(group)} seeds)")
        else:
            names.append(f"{group[0].name} and {counted(len(group) - 1, 'other seed')}")
    return names


def _key(run: Run) -> str:
    """Return a text that is the same for runs that may form one variant, and different for other runs."""
    told = {name: value for name, value in facts(run).items() if name not in _OF_ONE_RUN}
    return to_json([told, run.ended, run.plan.to_dict() if run.plan else None])


def _differ_by_seed(group: Sequence[Run]) -> bool:
    seeds = [str(run.settings.get(_SEED)) for run in group]
    whole = all(run.summary.get("exit_code") == 0 for run in group)
    return len(group) > 1 and whole and len(set(seeds)) == len(seeds) and all(_SEED in run.settings for run in group)


def facts(run: Run) -> dict[str, str]:
    """Return the settings, the parts of the scheme and the versions of a run, by name, as texts in the form that users type."""
    scheme = {f"scheme: {name}": value for name, value in run.scheme.items() if name != "name"}
    versions = {f"version: {name}": value for name, value in run.versions.items()}
    found = {"workers": run.workers, **run.settings, **scheme, **versions}
    return {name: "not set" if value is None else str(as_text(value)) for name, value in found.items() if name != "train_dir"}


def facts_of(variant: Variant) -> dict[str, str]:
    """Return the facts of the variant's first run (see `facts`). If it has several runs, the seed is that of all of them."""
    found = facts(variant.first)
    return {**found, _SEED: variant.seeds} if len(variant.runs) > 1 else found


def as_text(value: Any) -> str | None:
    """Return a recorded value as text in the form that users type; None if it is None."""
    if value is None or isinstance(value, str):
        return value
    return to_json(value)
