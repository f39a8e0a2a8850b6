"""The scheme of a run: a row of the table of schemes, with the user's parameters and overrides applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from psnode.codecs import Codec
from psnode.codecs.registry import codec_of, known_codec, load_codec
from psnode.codecs.spec import Spec, Stage, parse
from psnode.config import Config
from psnode.config.declaration import nearest
from psnode.config.effects import (
    DENSE_RATE,
    UNIT_RATE,
    ladder_to,
    lead_of,
    momentum_of,
    moves_by_rate,
    pace_of,
    refuse_what_has_no_effect,
)
from psnode.config.names import DENSE
from psnode.config.ratios import ratio_of
from psnode.config.scheme import BEFORE, Scheme
from psnode.config.schemes import NAMES, SCHEMES, UNRECORDED
from psnode.errors import ConfigurationError

# setting -> the codec's parameter, and the function that converts the setting's value to the parameter's value
_OVERRIDES: Mapping[str, tuple[str, Callable[[int], int]]] = MappingProxyType(
    {
        "svd_rank": ("rank", lambda rank: rank),
        "quantization_level": ("levels", lambda bits: 2**bits - 1),
        "bucket_size": ("bucket", lambda size: size),
    }
)


def resolve(config: Config, *, unrecorded: bool = False) -> Scheme:
    """Return the scheme that `config` names, with its parameters and overrides applied.

    The result's `codec` is the full spec, with every parameter written out. If another codec replaces the scheme's own
    codec, or if no weights are sent, the scheme's downlink does not apply; the downlink is then dense unless --downlink is
    given. `unrecorded`: True for a run that is older than records of schemes; then the rules of that time apply. Raises
    ConfigurationError for an unknown scheme, and for settings that are invalid together.
    """
    from psnode.feedback import get_feedback

    if config.codec:
        config = replace(config, codec=load_codec(config.codec))
    scheme, asked = _named(config.scheme)
    if unrecorded:
        scheme = replace(scheme, **{**BEFORE, **UNRECORDED.get(scheme.name, {})})
    codec = codec_of(_spec(config, scheme, asked))
    feedback, aggregator = config.feedback or scheme.feedback, config.aggregator or scheme.aggregator
    rule = get_feedback(feedback)
    usual, lr = pace_of(config, rule, scheme.momentum, scheme.lr)
    momentum = momentum_of(config, rule, aggregator, usual)
    ladder = scheme.ratio_warmup
    if unrecorded:
        momentum = scheme.momentum if config.momentum is None else config.momentum
    else:
        refuse_what_has_no_effect(config, rule, codec, aggregator, momentum)
        ladder = ladder_to(ratio_of(codec), ladder)
    by_rate = moves_by_rate(rule, codec, aggregator)
    own = not config.codec and config.sends_weights and config.downlink is None
    lead = lead_of(config.optimizer, scheme.downlink_lead) if own else 0.0
    usual_downlink = DENSE if config.codec or not config.sends_weights else scheme.downlink
    downlink = _downlink(config.downlink or usual_downlink, codec)
    if config.downlink_lead and downlink == DENSE:
        raise ConfigurationError(
            "--downlink-lead needs changes of weights that are coded, and the downlink is dense: leave it out"
        )
    return replace(
        _warmed_up(replace(scheme, ratio_warmup=ladder), config.sparsity_warmup_epochs),
        codec=repr(codec),
        feedback=feedback,
        aggregator=aggregator,
        downlink=downlink,
        downlink_lead=lead if config.downlink_lead is None else config.downlink_lead,
        momentum=momentum,
        lr=lr if by_rate == (lr == UNIT_RATE) else UNIT_RATE if by_rate else DENSE_RATE,
    )


def _spec(config: Config, scheme: Scheme, asked: Sequence[Stage]) -> Spec:
    """Return the spec of the codec that `config` asks for.

    `asked`: the stages in the text of --scheme. The first is the scheme's name with settings for its codec; the others are
    added.
    """
    (name, settings), *added = asked
    if config.codec:
        if settings or added:
            raise ConfigurationError(f"--scheme {config.scheme} changes a codec that --codec replaces: leave one of the two out")
        given = parse(config.codec)
        return _overridden(config, given, given.stages)
    own = parse(scheme.codec)
    unasked = [Stage(name, {})] * (len(own.stages) - 1)
    spec = own.changed(0, settings)
    return _overridden(config, spec._replace(stages=(*spec.stages, *added)), (asked[0], *unasked, *added))


def _warmed_up(scheme: Scheme, epochs: float | None) -> Scheme:
    """Return `scheme` with the length of its warm-up changed to `epochs` epochs. If `epochs` is None, return it unchanged."""
    if epochs is None:
        return scheme
    if not scheme.ratio_warmup:
        names = ", ".join(name for name, other in SCHEMES.items() if other.ratio_warmup)
        if SCHEMES[scheme.name].ratio_warmup:
            raise ConfigurationError(
                f"--sparsity-warmup-epochs has no meaning here: no ratio of {scheme.name}'s warm-up is above the codec's own"
            )
        raise ConfigurationError(f"--sparsity-warmup-epochs has no meaning with {scheme.name}: the schemes with one are {names}")
    if not epochs:
        return replace(scheme, ratio_warmup=())
    return replace(scheme, ratio_epochs=epochs / len(scheme.ratio_warmup))


def _named(text: str) -> tuple[Scheme, tuple[Stage, ...]]:
    """Return the scheme and the stages in a text such as `topk:ratio=0.005+fp16`.

    The first stage is the scheme's name with settings for its codec; the others are stages to add.
    """
    name = text.partition(":")[0].partition("+")[0].strip()
    scheme = NAMES.get(name.casefold())
    if scheme is None:
        raise ConfigurationError(f"--scheme must be one of {', '.join(SCHEMES)}, not {name!r}{nearest(name, NAMES)}")
    return scheme, parse(text).stages


def _overridden(config: Config, spec: Spec, asked: Sequence[Stage]) -> Spec:
    """Return `spec` with --svd-rank, --quantization-level and --bucket-size applied.

    Each of these settings changes one parameter of the first stage that has this parameter. Raises ConfigurationError if no
    stage has it, or if `asked`, the stages as the user wrote them, sets it to another value.
    """
    for name, (parameter, convert) in _OVERRIDES.items():
        given = getattr(config, name)
        if given is None:
            continue
        flag, value = f"--{name.replace('_', '-')} {given}", str(convert(given))
        full = codec_of(spec).spec
        index = full.holder(parameter)
        if index is None:
            raise ConfigurationError(f"{flag} has no meaning for codec {spec}, which has no {parameter}: leave it out")
        if index < len(asked) and parameter in asked[index].settings and full.stages[index].settings[parameter] != value:
            written = f"{parameter}={asked[index].settings[parameter]}"
            raise ConfigurationError(
                f"{flag} means {parameter}={value} but the codec is given {written}: leave one of the two out"
            )
        spec = spec.changed(index, {parameter: value})
    return spec


def _downlink(spec: str, uplink: Codec) -> str:
    """Return the full spec of a downlink, or `dense`. Raises ConfigurationError for a codec that cannot serve as a downlink."""
    if spec == DENSE:
        return spec
    codec = known_codec(spec)
    if codec.lossless:
        raise ConfigurationError(f"--downlink {spec} is lossless: write dense, which sends the weights themselves")
    if codec.traits.refit > 1:
        raise ConfigurationError(f"--downlink {spec} keeps no codebook from step to step: leave refit={codec.traits.refit} out")
    if codec.shaped and not uplink.shaped:
        raise ConfigurationError(f"--downlink {spec} needs tensors one by one, but {uplink!r} joins them: use svd up as well")
    return repr(codec)
