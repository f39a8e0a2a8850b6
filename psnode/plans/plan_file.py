"""Plan files, which `psnode plan` saves for `psnode train`: a plan, the settings of its scheme, and its predicted step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import psnode
from psnode.config import Config, settings
from psnode.config.files import read_json
from psnode.config.names import names_codec_file
from psnode.config.plain_json import to_json
from psnode.config.resolve import resolve
from psnode.config.schemes import SETTINGS
from psnode.errors import ConfigurationError
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan
from psnode.plans.prediction import Prediction

FORMAT = 2
_FIRST_FORMAT = 1  # that of plans for the usual topology, which earlier versions can read
_USUAL = Config().topology
_GROUPING = ("small_tensors", "min_compress_bytes", "group_by", "group_bytes")  # settings by which the rule makes a plan


@dataclass(frozen=True)
class PlanFile:
    """A plan for one model.

    `settings`: the settings that make the plan's scheme, by name; all names are in psnode.config.schemes.SETTINGS.
    `prediction`: the predicted step, None if no step was predicted. `told`: lines for people, which explain the choice.
    `topology`: the topology for which the step was predicted, and with which the plan is used.
    """

    plan: Plan
    settings: Mapping[str, Any]
    prediction: Prediction | None = None
    told: tuple[str, ...] = ()
    topology: str = _USUAL
    _path: Path = field(default=Path("-"), compare=False)

    def save(self, file: Path) -> None:
        """Write the plan to `file` as JSON, and create its folder if needed. Raises ConfigurationError if this fails."""
        prediction = None if self.prediction is None else self.prediction.to_dict()
        content = {
            "format": _FIRST_FORMAT, "psnode": psnode.__version__, "told": self.told, "settings": self.settings,
            "prediction": prediction, "plan": self.plan.to_dict(),
        }  # fmt: skip
        if self.topology != _USUAL:
            content |= {"format": FORMAT, "topology": self.topology}
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(to_json(content, indent=1) + "\n")
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error

    @classmethod
    def load(cls, file: Path) -> Self:
        """Return a saved plan. Raises ConfigurationError if `file` cannot be read or is not a plan file of a known format."""
        try:
            found = read_json(file)
            if found["format"] not in (_FIRST_FORMAT, FORMAT):
                raise ValueError(f"its format is {found['format']!r}, not {FORMAT}")
            given = dict(found["settings"])
            if strange := sorted(given.keys() - set(SETTINGS)):
                raise ValueError(f"{strange[0]} is no setting of a scheme")
            said = found["prediction"]
            prediction = None if said is None else Prediction.from_dict(said)
            topology = found["topology"] if found["format"] == FORMAT else _USUAL
            loaded = cls(Plan.from_dict(found["plan"]), given, prediction, tuple(map(str, found["told"])), topology, file)
            Config(**given, topology=topology)
            if len(loaded.plan.slices()) < len(loaded.plan.tensors):
                raise ValueError("a tensor has two places")
        except OSError as error:
            raise ConfigurationError(f"--plan {file} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, ConfigurationError) as error:
            problem = f"{error!s} is missing" if isinstance(error, KeyError) else str(error)
            raise ConfigurationError(
                f"--plan {file} holds no plan ({problem}): write one with psnode plan --save-plan"
            ) from error
        return loaded

    def applied(self, config: Config) -> Config:
        """Return `config` with the plan's settings. Raises ConfigurationError if `config` sets a different value.

        The run's directory stays that of `config`, although the default directory is named after the scheme. The plan may name a
        codec file only if `config` names the same file, since the file is executed.
        """
        usual = Config()
        for name in SETTINGS:
            asked, own = getattr(config, name), self.settings.get(name, getattr(usual, name))
            if asked not in (own, getattr(usual, name)):
                raise ConfigurationError(
                    f"--plan {self._path} has {settings()[name].flag} {own}, not {asked}: leave one of the two out"
                )
        topology = self._topology_beside(config)
        for name in () if config.resume else _GROUPING:  # a resumed run has recorded its own
            if getattr(config, name) != getattr(usual, name):
                raise ConfigurationError(f"--plan {self._path} has groups of its own: leave {settings()[name].flag} out")
        codec = self.settings.get("codec")
        if names_codec_file(codec) and codec != config.codec:
            raise ConfigurationError(
                f"--plan {self._path} executes the code of {codec}: name it with --codec as well, if you trust it"
            )
        groups = {name: getattr(usual, name) for name in _GROUPING}
        return replace(config, train_dir=config.directory, topology=topology, **groups, **self.settings)

    def _topology_beside(self, config: Config) -> str:
        """Return the topology of a run with `config`: the plan's if only the plan's is unusual, otherwise that of `config`.

        Raises ConfigurationError if the plan and `config` have different topologies and both are unusual. Also raises it if
        only the plan has a topology with servers, since the ranks of its servers have not been started.
        """
        if self.topology in (_USUAL, config.topology):
            return config.topology
        if config.topology != _USUAL:
            raise ConfigurationError(
                f"--plan {self._path} has --topology {self.topology}, not {config.topology}: leave one of the two out"
            )
        if Config(topology=self.topology).servers:
            raise ConfigurationError(
                f"--plan {self._path} has --topology {self.topology}: name it as well, so that its servers are started"
            )
        return self.topology

    def coding(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> Coding:
        """Return the coding of a model by this plan, under `config` with the plan's settings.

        `shapes`: the shapes of the model's trained tensors. Raises ConfigurationError if the plan is for another model, or if
        the optimizer cannot use it.
        """
        if problem := self.plan.difference(shapes):
            raise ConfigurationError(f"--plan {self._path} is of another model: {problem}; make a plan of this one")
        starts = {place.start for place in self.plan.slices().values()}
        if config.whole_tensors and not all(group.start in starts for group in self.plan.groups):
            raise ConfigurationError(
                f"--plan {self._path} cuts a tensor, and --optimizer {config.optimizer} needs whole ones: make a plan with it"
            )
        try:
            return Coding(self.plan, resolve(config))
        except (ConfigurationError, ValueError) as error:
            raise ConfigurationError(f"--plan {self._path} cannot be used: {error}") from error


def stated_settings(config: Config) -> dict[str, Any]:
    """Return, in the form of a plan file, the settings of `config` that make its scheme and differ from their defaults."""
    usual = Config()
    found = {name: getattr(config, name) for name in SETTINGS if getattr(config, name) != getattr(usual, name)}
    return dict(json.loads(to_json({"scheme": config.scheme, **found})))
