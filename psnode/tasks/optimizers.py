"""torch's optimizers by name, their arguments, and their state."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from psnode.config import Config
from psnode.config.train_settings import OWN
from psnode.errors import ConfigurationError

_ADAMS = ("exp_avg", "exp_avg_sq")  # torch's names of the state vectors
_RESERVED = frozenset(
    {"self", "params", "lr", "weight_decay", "betas", "eps", "momentum", "foreach", "fused", "capturable", "maximize"}
    | {"differentiable", "decoupled_weight_decay"}
)


class ElementwiseOptimizer(NamedTuple):
    """An optimizer of torch that works coordinate by coordinate.

    `memories` are the names of its state vectors, `counts` the names of its state numbers with their initial values.
    """

    make: type[torch.optim.Optimizer]
    memories: tuple[str, ...] = _ADAMS
    counts: Mapping[str, float] = MappingProxyType({"step": 0.0})


COORDINATEWISE: Mapping[str, ElementwiseOptimizer] = MappingProxyType(
    {
        "adam": ElementwiseOptimizer(torch.optim.Adam),
        "adamw": ElementwiseOptimizer(torch.optim.AdamW),
        "nadam": ElementwiseOptimizer(torch.optim.NAdam, counts={"step": 0.0, "mu_product": 1.0}),
        "radam": ElementwiseOptimizer(torch.optim.RAdam),
        "adamax": ElementwiseOptimizer(torch.optim.Adamax, ("exp_avg", "exp_inf")),
        "rmsprop": ElementwiseOptimizer(torch.optim.RMSprop, ("square_avg",)),
        "adagrad": ElementwiseOptimizer(torch.optim.Adagrad, ("sum",)),
        "adadelta": ElementwiseOptimizer(torch.optim.Adadelta, ("square_avg", "acc_delta")),
    }
)
# optimizers that need whole tensors, or whose initial state depends on the first step
_BY_TENSOR: Mapping[str, type[torch.optim.Optimizer]] = MappingProxyType(
    {"adafactor": torch.optim.Adafactor, "asgd": torch.optim.ASGD, "rprop": torch.optim.Rprop}
)


def memories_of(config: Config) -> dict[str, float]:
    """Return the names of the optimizer's state vectors with their initial values. The optimizer must be in COORDINATEWISE."""
    found = dict.fromkeys(COORDINATEWISE[config.optimizer].memories, 0.0)
    options = _options(config)
    found |= {"max_exp_avg_sq": 0.0} if options.get("amsgrad") else {}
    found |= {"grad_avg": 0.0} if options.get("centered") else {}
    found |= {"momentum_buffer": 0.0} if config.optimizer == "rmsprop" and config.momentum else {}
    return found | ({"sum": options.get("initial_accumulator_value", 0.0)} if config.optimizer == "adagrad" else {})


def arguments(config: Config, momentum: float) -> dict[str, Any]:
    """Return the arguments of the optimizer of `config`, except its learning rate.

    If the optimizer has betas, `momentum` is the first beta.
    """
    allowed = inspect.signature(_class(config)).parameters
    found: dict[str, Any] = {"weight_decay": config.weight_decay} if "weight_decay" in allowed else {}
    found |= {"betas": (momentum, config.beta2)} if "betas" in allowed else {}
    found |= {"eps": config.eps} if config.eps is not None else {}
    found |= {"momentum": config.momentum} if "momentum" in allowed and config.momentum is not None else {}
    return {**found, **_options(config)}


def made(config: Config, momentum: float, parameter: nn.Parameter, lr: float) -> torch.optim.Optimizer:
    """Return the optimizer of `config` for one tensor."""
    return _class(config)(
        [parameter],
        lr=lr,  # type: ignore[call-arg]  # all of these optimizers have a learning rate
        **arguments(config, momentum),
        **_plain(config),
    )


def require_optimizer(config: Config, *, own: bool) -> None:
    """Raise ConfigurationError if torch refuses the optimizer's options, or if --optimizer is task and the task has no optimizer.

    `own`: True if the task has an optimizer.
    """
    if config.optimizer == OWN and not own:
        raise ConfigurationError("--optimizer task needs one of the task's own: write Task.optimizer, or pass it to the session")
    if config.optimizer in ("sgd", OWN):
        return
    try:
        made(config, 0.9, nn.Parameter(torch.zeros(2, 2)), 0.01)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"--optimizer {config.optimizer}: {error}") from error


def _plain(config: Config) -> dict[str, Any]:
    """Return the arguments with which torch's optimizer updates one tensor at a time."""
    return {"foreach": False} if "foreach" in inspect.signature(_class(config)).parameters else {}


def _class(config: Config) -> type[torch.optim.Optimizer]:
    kind = COORDINATEWISE.get(config.optimizer)
    return kind.make if kind is not None else _BY_TENSOR[config.optimizer]


def _options(config: Config) -> dict[str, Any]:
    """Return the values of --optimizer-option by name, in the types that torch expects."""
    allowed = inspect.signature(_class(config)).parameters
    known = {name: each for name, each in allowed.items() if name not in _RESERVED}
    if "eps" in allowed and isinstance(allowed["eps"].default, tuple):  # a tuple, which --eps cannot express
        known["eps"] = allowed["eps"]
    found = {}
    for key, text in config.optimizer_options().items():
        if key not in known:
            raise ConfigurationError(
                f"--optimizer-option {key} is not an option of {config.optimizer}: {', '.join(known) or 'none'}"
            )
        found[key] = _typed(key, text, known[key].default)
    return found


def _typed(key: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[text.casefold()]
        if isinstance(default, tuple):
            return tuple(None if part == "none" else float(part) for part in text.split("/"))
        return float(text)
    except (KeyError, ValueError) as error:
        kind = bool if isinstance(default, bool) else tuple if isinstance(default, tuple) else float
        wanted = {bool: "true or false", tuple: "numbers between slashes", float: "a number"}[kind]
        raise ConfigurationError(f"--optimizer-option {key} must be {wanted}, not {text!r}") from error
