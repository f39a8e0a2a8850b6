"""Values that Optuna draws for trials. They depend only on the seed, and on the number, values and results of earlier trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psnode.errors import ConfigurationError, installing
from psnode.jobs.tuning.space import Varied

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def draw(
    varied: Sequence[Varied], earlier: Sequence[tuple[dict[str, str], float | None]], *, seed: int, maximize: bool, blind: int
) -> dict[str, str]:
    """Return the values of the next trial, one for each of `varied`, as text.

    The first `blind` trials are random. Later trials come from a tree-structured Parzen estimator (Bergstra et al., NeurIPS
    2011). `earlier`: the values and results of the trials so far; the result of a failed trial is None. Raises
    ConfigurationError if optuna is missing.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigurationError(f"a range needs the package optuna: {installing('tune')}, or list values") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed + 1_000_003 * len(earlier), n_startup_trials=blind)
    study = optuna.create_study(direction="maximize" if maximize else "minimize", sampler=sampler)
    space = {one.name: _distribution(one) for one in varied}
    for values, result in earlier:
        parameters = {one.name: _value(one, values[one.name]) for one in varied}
        state = optuna.trial.TrialState.FAIL if result is None else optuna.trial.TrialState.COMPLETE
        study.add_trial(optuna.trial.create_trial(params=parameters, distributions=space, value=result, state=state))
    drawn = study.ask(space).params
    return {one.name: f"{drawn[one.name]:.4g}" if isinstance(drawn[one.name], float) else str(drawn[one.name]) for one in varied}


def _distribution(one: Varied) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if not one.is_range:
        return CategoricalDistribution(one.values)
    if one.whole:
        return IntDistribution(int(one.low), int(one.high), log=one.logarithmic)
    return FloatDistribution(one.low, one.high, log=one.logarithmic)


def _value(one: Varied, text: str) -> str | int | float:
    """Return the value `text` of an earlier trial in the type of its distribution.

    The text is rounded and may therefore lie outside the range, so the value is clamped to the range.
    """
    if not one.is_range:
        return text
    number = min(max(float(text), one.low), one.high)
    return int(number) if one.whole else number
