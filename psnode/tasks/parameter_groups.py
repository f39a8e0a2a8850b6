"""Parameter groups: parameters with their own settings, in the format of torch.optim.

    [{"params": [model.head.weight], "lr": 0.1}, {"params": ["body.weight", "body.bias"], "weight_decay": 0.0}]

`params` are parameters, or their names in the state dict. The other keys override settings of the run. `lr` is the learning rate
before the schedule. The schedule multiplies the rates of all groups by the same factor, as torch's schedulers do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from psnode.config import Config
from psnode.config.declaration import nearest
from psnode.config.resolve import resolve
from psnode.config.train_settings import OWN
from psnode.errors import ConfigurationError
from psnode.tasks.tensor_names import of_model, parameters

_SETTINGS = ("momentum", "nesterov", "weight_decay", "beta2", "eps")
_RATES = ("lr", "lr_factor")
_KEYS = (*_RATES, *_SETTINGS, "betas")


@dataclass(frozen=True)
class ParameterGroup:
    """A group of trained parameters with settings of their own.

    `names`: the parameters, in the order of the state dict. `settings`: values that override settings of the run. The
    learning rate of these parameters is `lr_factor` times the learning rate of the run.
    """

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    lr_factor: float = 1.0

    def config(self, config: Config) -> Config:
        """Return the configuration of the run with the group's settings applied."""
        return replace(config, **self.settings)

    def to_dict(self) -> dict[str, Any]:
        """Return the group as config.json records it."""
        return {"params": list(self.names), "lr_factor": self.lr_factor, **self.settings}


def groups_of(asked: Sequence[Mapping[str, Any]] | None, model: nn.Module, config: Config) -> tuple[ParameterGroup, ...]:
    """Return the parameter groups of `model`: those in `asked`, which the task asks for, or otherwise those of --no-decay.

    The result is empty if all parameters follow the settings of the run; frozen parameters are left out. `config.lr` must be
    resolved. Raises ConfigurationError for groups that torch.optim would not take or that leave a trained parameter out, and
    for settings that are invalid for the run.
    """
    if asked is None:
        raise ConfigurationError("Task.parameter_groups returned None: it must return a list of dictionaries")
    if not asked:
        return _without_decay(model, config) if config.no_decay else ()
    if config.optimizer == OWN:
        raise ConfigurationError(
            "parameter_groups and Task.optimizer both choose the optimizer of tensors: leave one of the two out"
        )
    if config.no_decay:
        raise ConfigurationError(
            "--no-decay and the task's parameter_groups both choose the parameters without decay: leave one of the two out"
        )
    taken: dict[str, int] = {}
    found = []
    for index, group in enumerate(asked):
        names = _names(group, index, model)
        if twice := [name for name in names if name in taken]:
            raise ConfigurationError(f"parameter {twice[0]} is in two parameter groups: put it in one")
        taken |= dict.fromkeys(names, index)
        found.append(_group(group, index, names, config))
    trained = [name for name, parameter in parameters(model) if parameter.requires_grad]
    if missing := [name for name in trained if name not in taken]:
        raise ConfigurationError(
            f"parameter {missing[0]} is in no parameter group, and torch.optim would not train it: add it to one, or freeze it"
        )
    ordered = [replace(group, names=tuple(name for name in trained if name in group.names)) for group in found]
    return tuple(group for group in ordered if group.names)


def recorded(groups: Iterable[ParameterGroup]) -> list[dict[str, Any]]:
    """Return the groups as config.json records them."""
    return [group.to_dict() for group in groups]


def refuse_other_groups(now: Iterable[ParameterGroup], before: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigurationError if a run is resumed with other parameter groups than recorded.

    The message names the first parameter that differs.
    """
    old, new = _by_name(before), _by_name(recorded(now))
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            raise ConfigurationError(
                f"--resume needs the parameter groups of the run: {name} had {_shown(old.get(name))} in it and has "
                f"{_shown(new.get(name))} now"
            )


def _by_name(groups: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the settings of each parameter by name. Parameters without a setting of their own are left out."""
    found: dict[str, dict[str, Any]] = {}
    for group in groups:
        own = {key: value for key, value in group.items() if key != "params" and (key, value) != ("lr_factor", 1.0)}
        found |= {name: own for name in group["params"] if own}
    return found


def _shown(settings: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{key} {value:g}" for key, value in (settings or {}).items()) or "the settings of all"


def _names(group: Mapping[str, Any], index: int, model: nn.Module) -> list[str]:
    """Return the canonical names of the trained parameters in a group."""
    if not isinstance(group, Mapping) or "params" not in group:
        raise ConfigurationError(f'parameter group {index} must be a dictionary with "params", in the format of torch.optim')
    known = {id(parameter): name for name, parameter in parameters(model)}
    aliases, rename = dict(parameters(model, aliases=True)), of_model(model)
    members = group["params"]
    found = []
    for member in [members] if isinstance(members, (str, torch.Tensor)) else list(members):
        parameter = member[1] if isinstance(member, tuple) and len(member) == 2 else member
        parameter = aliases.get(rename(parameter)) if isinstance(parameter, str) else parameter
        if not isinstance(parameter, torch.Tensor) or id(parameter) not in known:
            what = f"{member!r}{nearest(member, aliases)}" if isinstance(member, str) else f"a {type(member).__name__}"
            raise ConfigurationError(
                f"parameter group {index} holds {what}, which is neither a parameter of the model nor its name"
            )
        if parameter.requires_grad:
            found.append(known[id(parameter)])
    return found


def _group(group: Mapping[str, Any], index: int, names: Sequence[str], config: Config) -> ParameterGroup:
    """Return a group. Its settings are checked by the same rules as the settings of the run."""
    asked = {key: value for key, value in group.items() if key != "params"}
    if unknown := [key for key in asked if key not in _KEYS]:
        raise ConfigurationError(f"parameter group {index} has no setting {unknown[0]!r}{nearest(unknown[0], _KEYS)}")
    if "betas" in asked:
        betas = asked.pop("betas")
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise ConfigurationError(f"parameter group {index}: betas must be two numbers, not {betas!r}")
        asked["momentum"], asked["beta2"] = betas
    settings = {key: asked[key] for key in _SETTINGS if key in asked}
    try:
        factor = _factor(asked, config)
        checked = replace(config, **settings)
        checked.validate(settings)
        resolve(checked)
    except ConfigurationError as error:
        raise ConfigurationError(f"parameter group {index}: {error}") from error
    return ParameterGroup(tuple(names), {key: getattr(checked, key) for key in settings}, factor)


def _factor(asked: Mapping[str, Any], config: Config) -> float:
    if "lr" in asked and "lr_factor" in asked:
        raise ConfigurationError("lr and lr_factor both set its learning rate: leave one of the two out")
    assert config.lr is not None
    rate = replace(config, lr=asked["lr"]).lr if "lr" in asked else replace(config, lr=asked.get("lr_factor", 1.0)).lr
    assert rate is not None
    return rate / config.lr if "lr" in asked else rate


def _without_decay(model: nn.Module, config: Config) -> tuple[ParameterGroup, ...]:
    """Return two groups: the parameters with decay, if there are any, and the parameters that --no-decay names.

    Raises ConfigurationError if --no-decay names no trained parameter of the model.
    """
    spared = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if any(_KINDS[kind](module, name, parameter) for kind in config.no_decay):
                spared.add(id(parameter))
    trained = [(name, id(parameter)) for name, parameter in parameters(model) if parameter.requires_grad]
    without = tuple(name for name, key in trained if key in spared)
    if not without:
        raise ConfigurationError(f"--no-decay {','.join(config.no_decay)} names nothing that the model trains: leave it out")
    rest = tuple(name for name, key in trained if key not in spared)
    return (*((ParameterGroup(rest, {}),) if rest else ()), ParameterGroup(without, {"weight_decay": 0.0}))


_KINDS: Mapping[str, Callable[[nn.Module, str, nn.Parameter], bool]] = {
    "norm": lambda module, name, parameter: "norm" in type(module).__name__.casefold(),
    "bias": lambda module, name, parameter: "bias" in name.rpartition(".")[2].casefold(),
    "embedding": lambda module, name, parameter: isinstance(module, (nn.Embedding, nn.EmbeddingBag)),
    "1d": lambda module, name, parameter: parameter.dim() <= 1,
}
