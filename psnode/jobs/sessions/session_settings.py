"""Settings of a session: the settings of a run, except those that the program itself determines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from psnode.codecs.registry import load_codec
from psnode.config import Config, settings
from psnode.config.declaration import nearest
from psnode.config.load import load
from psnode.config.names import PASSED
from psnode.config.schedules import OWN
from psnode.config.train_settings import BY_RULE, BY_TRIAL, UNDECIDED
from psnode.errors import ConfigurationError
from psnode.exchange.routes.topologies import is_central
from psnode.jobs.job import stated_threads
from psnode.jobs.sessions.words import resumed_automatically
from psnode.plans.roles import Layout
from psnode.plans.rule import DEFAULT_GROUP_BYTES
from psnode.transport.mpi.environment import WorldRank

if TYPE_CHECKING:
    import torch

_NOT_HERE = {
    "local": "start the program with mpirun -n 3 python PROGRAM",
    "task": "the model and the loop are the program's own",
    "task_option": "the model and the loop are the program's own",
    "network": "the model is the program's own",
    "dataset": "the data come from the loader of s.batches",
    "data_dir": "the data come from the loader of s.batches",
    "download": "the data come from the loader of s.batches",
    "synthetic_shape": "the data come from the loader of s.batches",
    "synthetic_classes": "the data come from the loader of s.batches",
    "synthetic_examples": "the data come from the loader of s.batches",
    "data_workers": "the loader of s.batches says it by num_workers",
    "test_batch_size": "the program evaluates its model itself",
    "precision": "the loop enters torch.autocast itself",
    "batch_size": "it is that of the loader of s.batches",
}


BACKWARD, STEP = "backward", "step"  # the values of `gradients`, which state when gradients are sent


def holds(gradients: str) -> bool:
    """Return True if gradients are to stay in `.grad` until `s.step()` is called, so that the loop can change them.

    `gradients`: the option of the session. Raises ConfigurationError for an unknown value.
    """
    if gradients not in (BACKWARD, STEP):
        raise ConfigurationError(f'gradients of a session leave in the "{BACKWARD}" pass or in the "{STEP}", not {gradients!a}')
    return gradients == STEP


def parameters_beside(others: Sequence[torch.nn.Module | torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Return the parameters in `others`, a list of parameters and modules, including the parameters of these modules.

    Raises ConfigurationError for any other object.
    """
    import torch

    found: list[torch.nn.Parameter] = []
    for other in others if isinstance(others, (list, tuple)) else [others]:
        if isinstance(other, torch.nn.Module):
            found += other.parameters()
        elif isinstance(other, torch.nn.Parameter):
            found.append(other)
        else:
            raise ConfigurationError(f"beside is a list of modules and parameters, and holds a {type(other).__name__}")
    return found


def with_own_rate(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `given` settings, changed for a session whose program has its own schedule of the learning rate.

    Raises ConfigurationError if the settings name another schedule.
    """
    if given.get("lr_schedule", OWN) != OWN:
        raise ConfigurationError(
            f"learning_rate is the session's schedule, and lr_schedule is {given['lr_schedule']}: leave one of the two out"
        )
    return {**given, "lr_schedule": OWN}


def configured(model: torch.nn.Module, given: Mapping[str, Any], here: WorldRank, *, alone: bool = False) -> Config:
    """Return the configuration of a session that trains `model`. The `given` settings override PSNODE_* variables.

    `alone`: True if the master and the only worker are threads of this process.

    Raises ConfigurationError for an unknown setting, and for a setting that has no meaning in a session.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise ConfigurationError(f"a session trains a torch.nn.Module, not a {type(model).__name__}")
    if "optimizer" in given and not isinstance(own := given["optimizer"], str):
        found = f"the class {own.__name__}" if isinstance(own, type) else f"an object of {type(own).__name__}"
        raise ConfigurationError(
            f"optimizer is a name in a session, such as sgd, not {found}: rank 0 makes it, of that "
            "name with lr, momentum, weight_decay, ..., or by a function f(name, parameter)"
        )
    known = settings()
    for name in given:
        if name not in known:
            raise ConfigurationError(f"session has no setting {name}{nearest(name, known) or ': psnode train --help lists them'}")
        if name in _NOT_HERE:
            raise ConfigurationError(f"{name} has no meaning in a session: {_NOT_HERE[name]}")
    if given.get("overlap"):
        raise ConfigurationError("overlap has no meaning in a session, where a batch is yielded when all weights have arrived")
    given, variables = resumed_automatically(given, os.environ)
    config = load({"task": f"{PASSED}{type(model).__name__}", "overlap": False, **given}, variables)
    if config.local is not None:
        raise ConfigurationError(f"local has no meaning in a session: {_NOT_HERE['local']}")
    if config.precision != "fp32":
        raise ConfigurationError(f"precision has no meaning in a session: {_NOT_HERE['precision']}")
    if config.plan == BY_TRIAL:
        raise ConfigurationError(
            f'plan has no "{BY_TRIAL}" in a session, whose trial steps only the program could take: name a file that '
            "psnode plan or psnode.plan saved"
        )
    if config.topology == UNDECIDED:
        raise ConfigurationError(
            f'topology has no "{UNDECIDED}" in a session, whose steps only the program could measure: name a topology'
        )
    if config.servers and alone:
        raise ConfigurationError(
            f"topology has no {config.topology} in a program that is started alone: start its ranks with psnode launch or mpirun"
        )
    if config.codec:
        load_codec(config.codec)
    # in a session, min_workers is all workers by default, even if a resumed run had another value
    if "min_workers" not in given and known["min_workers"].variable not in os.environ:
        config = replace(config, min_workers=max(1, Layout.of(here.size, config.spares, config.servers).workers))
    # group_bytes by trial steps would need passes, which only the program can run; if weights are dealt, there are no trial steps
    tried = config.plan == BY_RULE and config.group_by == "bytes" and is_central(config.topology)
    if tried and not config.group_bytes and not config.resume:
        config = replace(config, group_bytes=DEFAULT_GROUP_BYTES)
    config = replace(config, local=1 if alone else None)
    return replace(config, threads=config.threads or stated_threads(config))
