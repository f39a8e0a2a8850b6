"""Rules for momentum, weight decay and learning rates, and the refusal of settings without effect.

Gradients enter a momentum only once. If the feedback rule has a momentum, only that momentum applies, and the master gathers
weight decay separately by the same recursion (MomentumRule). Under a majority vote the master has no momentum, because a vote
moves a weight only by its sign. Otherwise the master's optimizer has the momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psnode.config import Config, settings
from psnode.config.train_settings import DESCENTS
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    from psnode.codecs import Codec
    from psnode.feedback import Feedback

MAJORITY = "majority"
CLIPPED = "mean:clip=median"
AUTO = 1e6  # value of norm_cap auto: 1e6 times the largest gradient ever accepted (psnode.exchange.shard.norm_verdicts)
DENSE_RATE = 0.01
PLAIN_RATE = 0.1  # without momentum; with momentum .9, a gradient moves the weights ten times as far in total
UNIT_RATE = 0.0005  # for updates that move every coordinate by the learning rate


def momentum_of(config: Config, rule: Feedback, aggregator: str, usual: float) -> float:
    """Return the momentum of the master's optimizer.

    This is `usual`, unless --momentum, the feedback rule or the aggregator determines it. Raises ConfigurationError if the
    gradient would enter two momenta, and for momentum or weight decay under a majority vote.
    """
    if config.momentum and rule.gathering is not None:
        raise ConfigurationError(
            f"--momentum {config.momentum:g} would be added to that of feedback {rule.id}: set it there, and leave this out"
        )
    if aggregator == MAJORITY and (config.momentum or config.weight_decay):
        raise ConfigurationError(
            "a majority vote takes neither --momentum nor --weight-decay: what moves a weight is its sign alone; leave them out"
        )
    if rule.gathering is not None or aggregator == MAJORITY:
        return 0.0
    return usual if config.momentum is None else config.momentum


def pace_of(config: Config, rule: Feedback, momentum: float, lr: float) -> tuple[float, float]:
    """Return the momentum and the learning rate of a run, from the `momentum` and `lr` of its scheme, which belong together.

    If `lr` is the rate for SGD without momentum, it is too high for a run with a momentum or with another optimizer, and is
    replaced. With another optimizer the momentum is replaced too.
    """
    if lr != PLAIN_RATE:
        return momentum, lr
    if config.optimizer != "sgd":
        return 0.9, DENSE_RATE
    return momentum, DENSE_RATE if config.momentum or rule.gathering is not None else lr


def lead_of(optimizer: str, lead: float) -> float:
    """Return the downlink's lead of a run, from the `lead` of its scheme: 0 under SGD, which a lead makes less stable.

    An own optimizer may be of any kind, and keeps the lead (docs/decisions/default-scheme.md, "No lead under SGD").
    """
    return 0.0 if optimizer in DESCENTS else lead


def rate_notes(name: str, own: float, lr: float | None) -> tuple[str, ...]:
    """Return notes for the user on the learning rate of a run.

    `name` and `own`: the scheme and its own rate. `lr`: the rate that the user has set; if it is None, the run uses `own`.
    """
    reasons = {UNIT_RATE: "every coordinate moves by as much in a step", PLAIN_RATE: "its optimizer has no momentum"}
    if own not in reasons:
        return ()
    if lr is None:
        return (f"{own:g}, {name}'s own: {reasons[own]}; --lr changes it",)
    if own == UNIT_RATE and lr > 4 * own:
        return (f"{lr:g} moves every coordinate by as much in a step, {lr / own:.3g} times {name}'s own",)
    if own == PLAIN_RATE and lr < own / 4:
        return (f"{lr:g} without momentum is as slow as {lr / 10:g} with momentum .9; {name}'s own is {own:g}",)
    return ()


def refuse_what_has_no_effect(config: Config, rule: Feedback, codec: Codec, aggregator: str, momentum: float) -> None:
    """Raise ConfigurationError for settings that would have no effect, or an unintended effect, in this combination."""
    if config.nesterov and not momentum:
        instead = f"write --feedback {rule.id}:nesterov=true" if hasattr(rule, "nesterov") else "leave it out"
        raise ConfigurationError(f"--nesterov is a form of the master's momentum, which is 0 here: {instead}")
    if aggregator == MAJORITY and config.optimizer != "sgd":
        raise ConfigurationError(
            f"--optimizer {config.optimizer} would divide a vote by its own size, which is 1: leave it out under a majority vote"
        )
    if aggregator == MAJORITY and config.norm_cap not in (0, settings()["norm_cap"].default):
        raise ConfigurationError(
            "--norm-cap has no meaning under a majority vote, where every worker weighs the same: leave it out"
        )
    if config.clip_grad_norm is not None and (aggregator == MAJORITY or rule.gathering is not None):
        sent = "votes" if aggregator == MAJORITY else f"momenta (feedback {rule.id})"
        raise ConfigurationError(f"--clip-grad-norm bounds a gradient, and the workers send {sent}: leave it out")
    if config.weighted_mean and (why := _without_weight(rule, codec, aggregator)):
        raise ConfigurationError(f"--weighted-mean weighs gradients, and {why}: leave it out")
    if aggregator == MAJORITY and rule.memory is not None:
        raise ConfigurationError(f"feedback {rule.id} keeps residuals, which a majority vote never sends: use none or ema")
    if aggregator == CLIPPED:
        _refuse_to_clip(config, rule, codec)
    elif rule.memory is not None and codec.lossless:
        raise ConfigurationError(f"feedback {rule.id} would have nothing to remember, since {codec!r} loses nothing: use none")
    if rule.masks and not codec.sparse:
        raise ConfigurationError(
            f"feedback {rule.id} forgets the momentum of what was sent, and {codec!r} sends every coordinate: use ef, with the "
            "master's momentum"
        )
    if config.weight_decay and config.optimizer not in ("sgd", "adamw", "adafactor") and rule.gathering is not None:
        raise ConfigurationError(
            f"--weight-decay with {config.optimizer} is gathered by its momentum, which is that of feedback {rule.id} here: use "
            "adamw, or sgd"
        )
    if config.small_tensors == "coded" and (codec.lossless or codec.shaped):
        why = "sends all tensors as they are" if codec.lossless else "codes matrices"
        raise ConfigurationError(f"--small-tensors coded has no meaning for {codec!r}, which {why}: leave it out")
    if codec.lossless and config.min_compress_bytes != settings()["min_compress_bytes"].default:
        raise ConfigurationError(f"--min-compress-bytes has no meaning for {codec!r}, which sends all tensors as they are")


def _without_weight(rule: Feedback, codec: Codec, aggregator: str) -> str:
    """Return the reason why pushes of workers cannot have different weights; empty if they can."""
    if aggregator == MAJORITY:
        return "all votes weigh the same"
    if aggregator == CLIPPED:
        return f"--aggregator {CLIPPED} takes a push that is larger than the others for a lie"
    if rule.gathering is not None:
        return f"feedback {rule.id} sends momenta, which are of many batches"
    return f"{codec!r} sends nothing of their size" if moves_by_rate(rule, codec, aggregator) else ""


def _refuse_to_clip(config: Config, rule: Feedback, codec: Codec) -> None:
    """Raise ConfigurationError if the norms of a round's pushes are unknown or not comparable."""
    if rule.merges(rule.form(codec)) and not codec.lossless:
        raise ConfigurationError(
            f"--aggregator {CLIPPED} weighs every worker's payload separately, and those of {codec!r} are added up undecoded: "
            "use mean"
        )
    if config.consistency not in ("bsp", "kofn") or config.num_aggregate == 1:
        raise ConfigurationError(
            f"--aggregator {CLIPPED} compares the pushes of a round, and under --consistency {config.consistency} a round may be "
            "of one: use bsp, or kofn with --num-aggregate above 1"
        )


def ladder_to(ratio: float | None, ladder: Sequence[float]) -> tuple[float, ...]:
    """Return the ratios of a warm-up, `ladder`, that are above the codec's own `ratio`; empty if the codec has no ratio."""
    return tuple(step for step in ladder if ratio is not None and step > ratio)


def moves_by_rate(rule: Feedback, codec: Codec, aggregator: str) -> bool:
    """Return True if an update moves a coordinate by an amount that does not depend on the size of gradients.

    The amount is the learning rate, or the learning rate times the mean of several signs.
    """
    return aggregator == MAJORITY or (codec.id == "sign" and rule.memory is None)
