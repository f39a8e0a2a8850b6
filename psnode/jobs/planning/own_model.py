"""Predictions for a model of a program, from the program's own loss on a batch: the result of psnode.plan."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnode.config import Config, settings
from psnode.config.amounts import rate_of
from psnode.config.declaration import nearest
from psnode.config.load import load
from psnode.config.names import PASSED
from psnode.config.train_settings import OWN, UNDECIDED
from psnode.errors import CodecSpecError, ConfigurationError, DivergedError, NonFiniteGradientError, TransportError
from psnode.exchange.routes.topologies import COMPARED
from psnode.jobs.planning.chosen_plan import chosen, plan_file
from psnode.jobs.planning.compared import compared
from psnode.jobs.planning.ddp_step import HOOKS
from psnode.jobs.planning.forecast import (
    CompressionVerdict,
    Forecast,
    forecasts,
    judge,
    left_out,
    limit_of,
    sentences,
    topology_sentences,
)
from psnode.jobs.planning.forecast_tables import NO_RATE, ending, heading, table
from psnode.jobs.planning.given_model import GivenModel, OwnLoss, check_model, undisturbed, unwrapped
from psnode.jobs.planning.profile import Profile, waiting
from psnode.jobs.planning.profiling import measure
from psnode.jobs.planning.routing.routed_groups import USUAL, possible
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.sessions.words import of_program

if TYPE_CHECKING:
    import torch

    from psnode.task import Batch

Rates = str | None | Sequence[str | None]
# by reason, the settings that a prediction cannot take: the program's own model, loss and batch decide them, or they are not
# modelled
_NOT_HERE = {
    "the model is the program's own": ("task", "task_option", "network"),
    "the batch is the program's own": (
        "dataset", "data_dir", "download", "synthetic_shape", "synthetic_classes", "synthetic_examples", "data_workers",
        "batch_size", "test_batch_size",
    ),
    "the loss enters torch.autocast itself": ("precision",),
    "passes are measured on the device of the model": ("enable_gpu",),
    "workers says how many there are": ("local",),
    "nothing is trained": ("resume", "init_from", "new_head"),
    "plans are its result": ("plan",),
    "a forward pass of a session waits for all weights": ("overlap",),
}  # fmt: skip
_RESUME = "PSNODE_RESUME"
_IN_A_GROUP = "DDP is not compared, since this process is in a process group: plan before init_process_group"
_NO_GROUPS = "DDP is not compared, since this torch is built without it"


@dataclass(frozen=True)
class RatePrediction:
    """Predictions for one rate of the links: the `forecasts`, the fastest first, their `verdict`, and the `sentences` on it.

    `scenario`: the rate, the number of workers and their hosts.
    """

    forecasts: tuple[Forecast, ...]
    verdict: CompressionVerdict
    sentences: tuple[str, ...]
    scenario: Scenario


@dataclass(frozen=True)
class OwnModelPlan:
    """Predictions for a model of a program. As text, they are the tables that `psnode plan` prints.

    `profile`: the measurement. `workers`: the number of workers. `by_rate`: the predictions for each rate, by the rate's
    text. `limit`: the rate in bit/s below which compression pays, or None (see psnode.jobs.planning.forecast.limit_of).
    `notes`: lines about predictions that were left out.
    """

    profile: Profile
    workers: int
    by_rate: Mapping[str, RatePrediction]
    limit: float | None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [heading(self.profile)]
        for rate, found in self.by_rate.items():
            lines += table(self.profile, self.workers, rate, found.forecasts, found.sentences)
        lines += ending(self.limit) if self.limit is not None else []
        return "\n".join([*lines, *(["", *self.notes] if self.notes else [])])

    def save(self, file: Path | str) -> None:
        """Save the profile to a file for `psnode plan --profile FILE`. The folder is created if it does not exist."""
        self.profile.save(Path(file))

    def save_plan(self, file: Path | str, rate: str | None = None) -> str:
        """Save the plan of the best scheme at a rate to a file for plan=FILE of a session, and return the scheme's name.

        `rate`: a key of `by_rate`. It may be left out if there is only one. Raises ConfigurationError for an unknown rate,
        and if recorded losses or the kinds of the codecs speak against all schemes.
        """
        name = next(iter(self.by_rate)) if rate is None and len(self.by_rate) == 1 else rate
        found = None if name is None else self.by_rate.get(name)
        if found is None:
            raise ConfigurationError(f"a plan is for one rate of {', '.join(self.by_rate)}, not {rate!r}")
        row = chosen(found.forecasts, found.verdict)
        plan_file(self.profile, row, found.verdict, found.scenario, f"psnode.plan, {name}").save(Path(file))
        return row.name


def plan_own_model(
    model: torch.nn.Module,
    loss: OwnLoss,
    batch: Batch,
    *,
    workers: int,
    rate: Rates,
    schemes: str | Sequence[str],
    round_trip: float,
    burst: float,
    cores: int | None,
    one_machine: bool,
    progress: Callable[[str], None] | None,
    given: Mapping[str, Any],
) -> OwnModelPlan:
    """Return the predictions for `model`. See psnode.plan for the parameters; `given` are settings of train.

    Raises ConfigurationError. The model and the state of the process are the same afterwards, even after an error.
    """
    workers = _whole("workers", workers)
    speeds = _speeds(rate)
    if cores is not None:
        cores = _whole("cores", cores)
    scenario = Scenario(workers, None, _amount("round_trip", round_trip) / 1e3, 1, one_machine, 1e3 * _amount("burst", burst))
    inner = unwrapped(model)
    check_model(inner)
    with undisturbed(inner):
        task = GivenModel(inner, loss, batch)
        with _named_as_in_programs():
            base, topologies, refused = _configured(task, inner, given)
            profile = _measured(task, base, schemes, progress, ranks=workers + 1 if one_machine else 1)
    scenario = replace(scenario, cores=cores or profile.host.cores)
    with _named_as_in_programs():
        found = {text: _predicted(profile, replace(scenario, rate=speed), topologies) for text, speed in speeds.items()}
    notes = [f"left out: {of_program(line)}" for line in refused]
    for topology, names in left_out(profile, topologies, [row for each in found.values() for row in each.forecasts]).items():
        notes.append(f"topology={topology}: refused, or too many frames to predict: {', '.join(names)}")
    return OwnModelPlan(profile, workers, found, limit_of(profile, scenario, topologies), (*notes, *_notes(profile)))


@contextmanager
def _named_as_in_programs() -> Iterator[None]:
    """Replace flags by the names of settings in the messages of errors that are raised inside the context."""
    try:
        yield
    except (ConfigurationError, CodecSpecError) as error:
        raise ConfigurationError(of_program(str(error))) from None


def _notes(profile: Profile) -> tuple[str, ...]:
    from torch import distributed

    if not distributed.is_available():
        return (_NO_GROUPS,)
    if distributed.is_initialized():
        return (_IN_A_GROUP,)
    missing = [hook for hook in HOOKS if hook not in profile.ddp]
    return tuple(f"DDP {hook} is not compared: it does not train this model with this loss" for hook in missing)


def _predicted(profile: Profile, scenario: Scenario, topologies: Sequence[str]) -> RatePrediction:
    rows = forecasts(profile, scenario, topologies)
    verdict = judge(rows)
    return RatePrediction(tuple(rows), verdict, (*sentences(verdict), *topology_sentences(rows, verdict)), scenario)


def _measured(
    task: GivenModel,
    base: Config,
    schemes: str | Sequence[str],
    progress: Callable[[str], None] | None,
    *,
    ranks: int,
) -> Profile:
    chosen = compared(base, [schemes] if isinstance(schemes, str) else schemes)
    task.check_loss()
    try:
        return waiting(measure(base, chosen, progress or (lambda line: None), ranks=ranks, task=task, device=task.device))
    except (DivergedError, NonFiniteGradientError, TransportError) as error:
        raise ConfigurationError(f"the measured steps on the batch diverge: give lr= as in the training ({error})") from error


def _configured(task: GivenModel, model: torch.nn.Module, given: Mapping[str, Any]) -> tuple[Config, list[str], list[str]]:
    """Return the configuration to measure, the topologies to predict, and a line for each topology that is refused.

    The configuration is that of a run with the settings `given`, which override PSNODE_* variables. It has the usual
    topology, because the measured worker and its master are in one process.
    """
    known, useless = settings(), {name: reason for reason, names in _NOT_HERE.items() for name in names}
    for name in given:
        if name not in known:
            raise ConfigurationError(f"plan has no setting {name}{nearest(name, known) or ': psnode train --help lists them'}")
        if name in useless:
            raise ConfigurationError(f"{name} has no meaning in a plan for a model of the program: {useless[name]}")
    if not isinstance(given.get("optimizer", ""), str) or given.get("optimizer") == OWN:
        raise ConfigurationError("optimizer is the name of one of torch's in a plan, such as adamw: name the one that is nearest")
    variables = {name: value for name, value in os.environ.items() if name != _RESUME}
    fixed = {"task": PASSED + type(model).__name__, "batch_size": len(task), "enable_gpu": task.device.type == "cuda"}
    config = load({**given, **fixed}, variables)
    topologies, refused = possible(config, COMPARED if config.topology == UNDECIDED else (config.topology,))
    return replace(config, topology=USUAL), topologies, refused


def _speeds(rate: Rates) -> dict[str, float | None]:
    """Return the rates in bit/s by their texts. The rate None stands for links on which messages take no time."""
    texts = [NO_RATE if each is None else each for each in ([rate] if rate is None or isinstance(rate, str) else rate)]
    found: dict[str, float | None] = {}
    for text in texts:
        if not isinstance(text, str):
            raise ConfigurationError(f"rate is a text such as 100mbit, or none, not {text!r}")
        try:
            found[text] = None if text == NO_RATE else rate_of(text)
        except ConfigurationError as error:
            raise ConfigurationError(str(error).removeprefix("--")) from None
    if not found:
        raise ConfigurationError("rate names no rate: give one, such as 100mbit")
    return found


def _whole(name: str, value: object) -> int:
    try:
        found = 0 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        found = 0
    if found < 1:
        raise ConfigurationError(f"{name} must be a whole number of at least 1, not {value!r}")
    return found


def _amount(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigurationError(f"{name} must be a number of at least 0, not {value!r}")
    return float(value)
