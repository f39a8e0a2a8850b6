"""The facts about a finished run that a refit needs: its settings, plan and links, and the medians of its steps.

Code that the files of the run name is never executed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self

from psnode.config import Config, settings
from psnode.config.files import read_json
from psnode.config.scheme import Scheme
from psnode.config.train_settings import BY_RULE
from psnode.errors import ConfigurationError, PsnodeError
from psnode.exchange.routes.topologies import group_bytes_of
from psnode.exchange.shard.consistency import rule_of
from psnode.plans.groups import Plan
from psnode.plans.prediction import Prediction
from psnode.plans.roles import Layout
from psnode.protocol.link_rates import LinkRates
from psnode.records.directory import CONFIG
from psnode.records.machines import MACHINES
from psnode.records.metrics import METRICS, read_records

FEWEST = 10  # a run with fewer steps has no medians
_COLD = 2  # number of first steps that do not count, as in the comparison of a run with its prediction


class StepFigures(NamedTuple):
    """The figures of a step: seconds, and the bytes that a worker `sent` and `received`.

    `step`: from one version to the next. `passes`: a worker's passes, including the time to load weights, but without waits.
    `encode`: the work of a worker's coder. `decode`: the master's work on the gradients of all workers. `update`: the
    master's optimizer and its coding of weights. If several ranks update weights, `decode` and `update` are those of the
    rank that takes longest.
    """

    step: float
    passes: float
    encode: float
    decode: float
    update: float
    sent: float
    received: float


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of `workers` workers in the directory `path`. `measured`: medians over `steps` measured steps.

    `prediction`: the recorded prediction of the run's step, or None. `links`: the recorded measurement of its links, or None.
    `cores`: the number of cores of the host that has the fewest; None if unknown. `crowded`: True if all ranks shared one
    host.
    """

    path: Path
    workers: int
    config: Config
    scheme: Scheme
    plan: Plan
    steps: int
    measured: StepFigures
    prediction: Prediction | None = None
    links: LinkRates | None = None
    cores: int | None = None
    crowded: bool = False

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the run in the directory `path`.

        Raises ConfigurationError if there is no run, or if the run is damaged. Also raises it if the run has rounds that do
        not wait for all workers, or fewer than FEWEST measured steps.
        """
        try:
            saved = read_json(path / CONFIG)
            config, scheme = Config.from_dict(saved["config"]), Scheme.from_dict(saved["scheme"])
            plan, first, workers = Plan.from_dict(saved["plan"]), 0, int(saved["workers"])
            for part in saved.get("parts", ()):
                first, workers = map(int, part)
            if workers < 1:
                raise ValueError(f"it is of {workers} workers")
            predicted, rates = saved.get("prediction"), saved.get("links")
            prediction = None if predicted is None else Prediction.from_dict(predicted)
            links = None if rates is None else LinkRates.recorded(rates)
        except (FileNotFoundError, NotADirectoryError):
            raise ConfigurationError(
                f"--from {path} holds no run: it has no {CONFIG}; name the directory of a run of psnode train"
            ) from None
        except OSError as error:
            raise ConfigurationError(f"--from {path} cannot be read: {error.strerror}") from error
        except (PsnodeError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            problem = f"{error!s} is missing" if isinstance(error, KeyError) else str(error)
            raise ConfigurationError(f"--from {path} is damaged: {CONFIG} cannot be used ({problem})") from error
        if rule_of(config, workers).rounds_go_on:
            raise ConfigurationError(
                f"--from {path}: rounds of this run closed without the slowest workers, and predictions are of rounds that wait "
                "for all: name a run of psnode train without --consistency"
            )
        found = _steps(path, first, Layout(workers, config.spares))
        if len(found) < FEWEST:
            raise ConfigurationError(
                f"--from {path}: {len(found)} steps of all {workers} workers are recorded after the first {_COLD}, and a refit "
                f"needs {FEWEST}: name a longer run"
            )
        measured = StepFigures(*(float(median(column)) for column in zip(*found, strict=True)))
        return cls(
            path, workers, config, scheme, plan, len(found), measured, prediction, links, *_hosts(path)
        )  # fmt: skip

    @property
    def layout(self) -> Layout:
        """The roles of the run's ranks."""
        return Layout(self.workers, self.config.spares, self.config.servers)

    @property
    def config_in_one_process(self) -> Config:
        """The settings with which a worker and a master in one process measure a step of the run.

        A size of groups that psnode chose by the number of workers is left out of these settings, although the run's record
        contains it.
        """
        config = self.config
        chosen = group_bytes_of(config.topology, 4 * self.plan.size, self.workers)
        size = 0 if config.group_bytes == chosen else config.group_bytes
        return replace(
            config, topology=Config().topology, group_bytes=size, plan=BY_RULE, local=None, resume=False, overlap=True, log_to=()
        )  # fmt: skip

    @property
    def code(self) -> str | None:
        """The first setting besides log_to that names code outside psnode, as flag and value; None if there is no such one."""
        for name, setting in settings().items():
            value, tells = getattr(self.config, name), setting.rules.names_code
            if name != "log_to" and tells is not None and tells(value):
                return f"{setting.flag} {value}"
        return None


def _steps(path: Path, first: int, layout: Layout) -> list[StepFigures]:
    """Return the figures of the steps after step `first` + _COLD in which all workers took part.

    The last step is left out if the job ended before the workers reported it.
    """
    try:
        records = [record for record in read_records(path / METRICS) if record["step"] > first + _COLD]
    except PsnodeError as error:
        raise ConfigurationError(f"--from {path} is damaged: {error}") from error
    found = []
    for record in records:
        try:
            if record["contributing"] == layout.workers:
                figures = _figures(record, layout)
                found += [figures] if figures.passes > 0 else []
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(
                f"--from {path} is damaged: the record of step {record['step']} in {METRICS} cannot be used ({error})"
            ) from error
    return found


def _figures(record: Mapping[str, Any], layout: Layout) -> StepFigures:
    """Return the figures in a record of metrics.jsonl. Raises ValueError if they cannot be those of a step."""
    seconds = record["seconds"]
    found = StepFigures(
        seconds["step"], seconds["forward_backward"], seconds["encode"], seconds["decode"],
        seconds["update"] + seconds["downlink"],
        record["uplink_bytes"] / layout.workers, record["downlink_bytes"] / len(layout.readers),
    )  # fmt: skip
    if not all(math.isfinite(value) and value >= 0 for value in found) or not found.step:
        raise ValueError("its figures are not those of a step")
    return found


def _hosts(path: Path) -> tuple[int | None, bool]:
    """Return the number of cores of the host that has the fewest, and True if all ranks share one host.

    The number is None if machines.json does not state it.
    """
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        ranks = read_json(path / MACHINES)["ranks"].values()
        cores = min(int(rank["cores"]) for rank in ranks)
        return (cores if cores > 0 else None), len(ranks) > 1 and len({str(rank["host"]) for rank in ranks}) == 1
    return None, False
