"""Settings, programs and processors that cannot be used with a topology, each with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from psnode.config import Config
from psnode.config.effects import AUTO, CLIPPED
from psnode.config.names import DENSE
from psnode.config.train_settings import BY_TRIAL, UNDECIDED
from psnode.errors import ConfigurationError
from psnode.exchange.routes.topologies import are_parts, is_central, is_plain, shares_of
from psnode.exchange.shard.consistency import waits_for_all


def require_straight(config: Config, program: str) -> None:
    """Raise ConfigurationError for a job with servers, or with workers that forward weights.

    `program` does not support them: it starts only one rank in addition to the workers, and it would count forwarded weights
    twice.
    """
    require_decided(config, program)
    if config.servers:
        raise ConfigurationError(f"{program} starts no servers: leave out --topology {config.topology}")
    if is_central(config.topology) and not is_plain(config.topology):
        raise ConfigurationError(f"{program} counts passed-on bytes twice: leave out --topology {config.topology}")


def require_decided(config: Config, program: str) -> None:
    """Raise ConfigurationError if the topology is to be decided at the start of a job. `program` makes no such decision."""
    if config.topology == UNDECIDED:
        raise ConfigurationError(f"{program} decides on no topology: name one, not --topology {UNDECIDED}")


def accepted(config: Config, topologies: Sequence[str], refuse: Callable[[Config], None]) -> tuple[list[str], list[str]]:
    """Return the topologies under which `refuse` accepts `config`, and an error line for each of the other topologies.

    `refuse`: a function that raises ConfigurationError for a configuration whose topology cannot be used.
    """
    found, refused = list[str](), list[str]()
    for topology in topologies:
        try:
            refuse(replace(config, topology=topology))
            found.append(topology)
        except ConfigurationError as error:
            refused.append(str(error))
    return found, refused


def refuse_other_roots(config: Config, aggregator: str = "", *, constrains: bool = False, downlink: str = DENSE) -> None:
    """Raise ConfigurationError for settings that the job's topology does not support.

    If all ranks exchange frames only with the master, every setting is accepted. `constrains`: True if the task has a
    constraint. `downlink`: the downlink of the scheme.
    """
    if not is_central(config.topology):
        _require_weights_to_send(config, downlink)
    for setting, (given, reason) in _reasons(config, aggregator, constrains=constrains).items():
        if given:
            raise ConfigurationError(f"{setting} {reason} under --topology {config.topology}: use --topology star")


def _reasons(config: Config, aggregator: str, *, constrains: bool) -> Mapping[str, tuple[bool, str]]:
    """Return the settings that the topology refuses.

    Each has True if the configuration uses it, and the reason for the refusal.
    """
    if is_plain(config.topology) or config.topology == UNDECIDED:
        return {}
    if is_central(config.topology):
        return _reasons_of_passed_on(config)
    if are_parts(config.topology):
        return _reasons_of_parts(config, aggregator, constrains=constrains)
    return _reasons_of_copies(config, constrains=constrains)


def _reasons_of_passed_on(config: Config) -> Mapping[str, tuple[bool, str]]:
    """Return the refused settings, see `_reasons`, of a topology in which workers forward weights to other workers."""
    return {
        "--consistency": (
            not waits_for_all(config), "other than bsp lets workers lag, on which those behind them would wait"
        ),
        "--plan auto": (config.plan == BY_TRIAL, "measures steps in which rank 0 sends the weights to all workers"),
    }  # fmt: skip


def _reasons_of_parts(config: Config, aggregator: str, *, constrains: bool) -> Mapping[str, tuple[bool, str]]:
    """Return the refused settings, see `_reasons`, of a topology in which every root has a part of the weights."""
    root = "every server" if config.servers else "every worker"
    return {
        "Task.constrain": (constrains, f"changes all weights at once, and {root} has a part of them"),
        "--norm-cap": (config.norm_cap not in (0, AUTO), f"compares norms of whole gradients, and {root} sees a part of them"),
        f"--aggregator {CLIPPED}": (
            aggregator == CLIPPED, f"compares norms of whole gradients, and {root} sees a part of them"
        ),
        "--consistency": (not waits_for_all(config), "would close the parts of a version with gradients of different workers"),
        "--plan auto": (config.plan == BY_TRIAL, "measures steps in which rank 0 updates the weights"),
        "--spares": (
            config.spares > 0,
            "would be the last ranks, which are servers"
            if config.servers else "cannot take over the part of the weights that a worker has",
        ),
        "--gpu-master": (
            config.gpu_master,
            "updates all weights on one device, and this master has a part of them"
            if shares_of(config.topology, 1).master else "has no weights to update on a master that only keeps the records",
        ),
    }  # fmt: skip


def _reasons_of_copies(config: Config, *, constrains: bool) -> Mapping[str, tuple[bool, str]]:
    """Return the refused settings, see `_reasons`, of a topology in which every worker updates all weights."""
    return {
        "Task.constrain": (constrains, "changes the model of rank 0, and every worker updates weights of its own"),
        "--consistency": (not waits_for_all(config), "leaves gradients out, and every worker would have to leave out the same"),
        "--aggregate-order arrival": (config.aggregate_order != "rank", "would add in another order on every worker"),
        "--plan auto": (config.plan == BY_TRIAL, "measures steps in which rank 0 updates the weights"),
        "--spares": (config.spares > 0, "would have to add up all gradients, as workers do"),
        "--gpu-master": (config.gpu_master, "has no weights to update on a master that only keeps the records"),
    }  # fmt: skip


def _require_weights_to_send(config: Config, downlink: str) -> None:
    """Raise ConfigurationError for a coded `downlink` in a job that sends no weights."""
    if downlink != DENSE and not config.sends_weights:
        raise ConfigurationError(
            f"--downlink {downlink} codes weights, and none are sent under --topology {config.topology}: begin the run with "
            "--downlink dense, or use --topology star"
        )


def refuse_unlike_processors(config: Config, arithmetic: Mapping[int, Mapping[str, object]], threads: Mapping[int, int]) -> None:
    """Raise ConfigurationError if every worker updates all weights, but not all workers round in the same way.

    `arithmetic`: by worker's rank, the rounding of its processor (psnode.exchange.machine). `threads`: by worker's rank, the
    number of its threads, on which the order of torch's sums depends.
    """
    if config.sends_weights:
        return
    first = min(arithmetic)
    ending = f"all workers have to get the same bits under --topology {config.topology}"
    for rank, found in sorted(arithmetic.items()):
        ranks = f"ranks {first} and {rank}"
        if found != arithmetic[first]:
            raise ConfigurationError(
                f"the processors of {ranks} round updates of weights differently, and {ending}: use --topology mesh"
            )
        if config.whole_tensors and threads[rank] != threads[first]:
            raise ConfigurationError(
                f"{ranks} have {threads[first]} and {threads[rank]} threads, by which --optimizer {config.optimizer} may round "
                f"differently, and {ending}: set --threads"
            )
