"""Schemes: the methods that a paper combines, under one name. This table is the only place that knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from psnode.codecs.spec import Stage, parse
from psnode.config import Config
from psnode.config.effects import (
    CLIPPED,
    DENSE_RATE,
    PLAIN_RATE,
    UNIT_RATE,
    ladder_to,
    momentum_of,
    moves_by_rate,
    pace_of,
    rate_notes,
    refuse_what_has_no_effect,
)
from psnode.config.extensions import load_codec
from psnode.config.names import DENSE
from psnode.config.options import nearest
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    from psnode.codecs import Codec
    from psnode.feedback import Gathering


@dataclass(frozen=True, slots=True)
class Scheme:
    """A combination as a paper defines it; specs are strings, so that the table needs nothing to be imported.

    codec, feedback, aggregator, downlink   specs
    momentum       of the master's optimizer, unless --momentum says otherwise or somebody else owns it (psnode.config.effects)
    gathers_decay  whether weight decay is gathered by a momentum as gradients are, also where the sender has that
    lr             the learning rate, unless --lr says otherwise
    ratio_warmup   the sparsifier's ratios before its own, `ratio_epochs` epochs each; empty: none
    rule           the paper's words on the learning rate, for the reader
    """

    name: str
    codec: str
    summary: str
    paper: str
    feedback: str = "none"
    aggregator: str = "mean"
    downlink: str = "dense"
    momentum: float = 0.9
    gathers_decay: bool = True
    lr: float = DENSE_RATE
    ratio_warmup: tuple[float, ...] = ()
    ratio_epochs: float = 1.0
    rule: str = "that of dense SGD"
    aliases: tuple[str, ...] = ()

    @property
    def gathering(self) -> Gathering | None:
        """Momentum with which the master gathers weight decay instead of the sender; None: as the optimizer has it."""
        from psnode.feedback import get_feedback

        return get_feedback(self.feedback).gathering if self.gathers_decay else None

    @property
    def clips(self) -> bool:
        """True if the master may use a part of a push, and tell its worker."""
        return self.aggregator == CLIPPED

    def notes(self, lr: float | None) -> tuple[str, ...]:
        """Notes on the requested learning rate `lr`; None: the scheme's own."""
        return rate_notes(self.name, self.lr, lr)

    def to_dict(self) -> dict[str, Any]:
        """The resolved scheme as config.json records it, in types that JSON has."""
        return {name: list(value) if isinstance(value := getattr(self, name), tuple) else value for name in _RECORDED}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Scheme:
        """Inverse of to_dict; ConfigurationError if a field is missing, unknown or of another type.

        A field that is newer than the record takes the value of the earlier behaviour.
        """
        fields = {**_BEFORE, **fields}
        if set(fields) != set(_RECORDED):
            raise ConfigurationError(
                f"a recorded scheme has the fields {', '.join(_RECORDED)}, not {', '.join(map(str, fields))}"
            )
        kinds: dict[str, tuple[type, ...]] = {"momentum": (int, float), "gathers_decay": (bool,)}
        kinds |= {"ratio_epochs": (int, float), "ratio_warmup": (list, tuple)}
        for name, value in fields.items():
            if not isinstance(value, kinds.get(name, (str,))):
                raise ConfigurationError(f"the recorded scheme's {name} is {value!r}")
        return cls(summary="", paper="", **{**fields, "ratio_warmup": tuple(map(float, fields["ratio_warmup"]))})


_RECORDED = (
    "name", "codec", "feedback", "aggregator", "downlink", "momentum", "gathers_decay", "ratio_warmup", "ratio_epochs",
)  # fmt: skip
# values in runs whose record lacks a field
_BEFORE: Mapping[str, Any] = MappingProxyType({"gathers_decay": False})

# error feedback as the papers have it, without momentum: a memory whose late gradients are gathered overshoots
_PLAIN: Mapping[str, Any] = MappingProxyType(
    {"momentum": 0.0, "lr": PLAIN_RATE, "rule": "that of SGD without momentum, ten times that with momentum .9"}
)
WEIGHTS_OWED = "ef:rescale=true"  # the memory of papers that carry the learning rate in it
CHANGES = "topk:ratio=0.1+scaledsign"  # a downlink of about .6 bits a coordinate
FEW_CHANGES = "topk:ratio=0.02+fp16"  # .5 bits: all there is, where so few coordinates travel up and nothing spreads them

_TABLE = (
    Scheme(
        "dense", "identity", "float32 as it is: the baseline", "",
        aliases=("fp32", "sgd", "identity"),
    ),
    Scheme("fp16", "fp16", "half precision, saturating", "IEEE 754-2019 binary16", downlink="fp16"),
    Scheme("bf16", "bf16", "the upper half of a float32, rounded", "Kalamkar et al., arXiv:1905.12322", downlink="bf16"),
    Scheme(
        "qsgd", "qsgd:levels=15,bucket=512", "stochastic rounding to levels of a bucket's norm, unbiased",
        "Alistarh et al., QSGD, NeurIPS 2017", downlink="qsgd:levels=15,bucket=512",
    ),
    Scheme(
        "atomo", "svd:rank=3", "a few singular triples, sampled with the least variance, unbiased",
        "Wang et al., ATOMO, NeurIPS 2018", downlink=CHANGES,
    ),
    Scheme(
        "atomo-entrywise", "entrywise", "coordinates sampled with the least variance, unbiased",
        "Wang et al., ATOMO, NeurIPS 2018", downlink=CHANGES,
    ),
    Scheme(
        "nuqsgd", "nuqsgd:levels=7", "stochastic rounding to powers of two of a bucket's norm, unbiased",
        "Ramezani-Kebrya et al., NUQSGD, JMLR 22, 2021", downlink=CHANGES,
    ),
    Scheme(
        "natural", "natural", "stochastic rounding to powers of two, unbiased",
        "Horvath et al., Natural compression, arXiv:1905.10988", downlink=CHANGES,
    ),
    Scheme(
        "dithered", "dithered+ans", "a lattice shifted by a dither that both sides know, entropy coded, unbiased",
        "Zamir and Feder, On universal quantization, IEEE Trans. Inf. Theory 38, 1992", downlink=CHANGES,
    ),
    Scheme(
        "terngrad", "terngrad:clip=2.5", "-1, 0 or 1 times the clipped maximum",
        "Wen et al., TernGrad, NeurIPS 2017", downlink=CHANGES,
    ),
    Scheme(
        "minmax", "minmax:bits=4", "equidistant values between the extremes, what HiPress calls TernGrad, unbiased",
        "Bai et al., HiPress, SOSP 2021", downlink=CHANGES,
    ),
    Scheme(
        "onebit", "onebit", "two values, the means of the entries below and above zero, the rest remembered",
        "Seide et al., 1-bit stochastic gradient descent, Interspeech 2014", feedback="ef", downlink=CHANGES, **_PLAIN,
    ),
    Scheme(
        "signsgd", "sign", "signs, decided by majority vote at the master",
        "Bernstein et al., signSGD with majority vote, ICLR 2019",
        aggregator="majority", downlink="scaledsign", momentum=0.0, lr=UNIT_RATE,
        rule="every coordinate moves by lr: a twentieth of dense SGD's and less",
    ),
    Scheme(
        "signum", "sign", "signs of the momentum average, decided by majority vote",
        "Bernstein et al., signSGD with majority vote, ICLR 2019", feedback="ema:beta=0.9",
        aggregator="majority", downlink="scaledsign", momentum=0.0, lr=UNIT_RATE,
        rule="every coordinate moves by lr: a twentieth of dense SGD's and less",
    ),
    Scheme(
        "tbq", "tbq", "entries beyond a threshold, as its value, the rest remembered",
        "Strom, Scalable distributed DNN training using commodity GPU cloud computing, Interspeech 2015", feedback="ef",
        downlink=CHANGES, **_PLAIN,
    ),
    Scheme(
        "efsignsgd", "scaledsign", "signs times the mean magnitude, the rest remembered",
        "Karimireddy et al., Error feedback fixes SignSGD, ICML 2019", feedback=WEIGHTS_OWED, downlink=CHANGES, **_PLAIN,
    ),
    Scheme(
        "randk", "randk:ratio=0.01", "one coordinate in a hundred, drawn by a shared seed, the rest remembered",
        "Stich et al., Sparsified SGD with memory, NeurIPS 2018", feedback=WEIGHTS_OWED, downlink=FEW_CHANGES, **_PLAIN,
    ),
    Scheme(
        "graddrop", "graddrop:ratio=0.01", "what exceeds a sampled threshold, the rest remembered",
        "Aji and Heafield, Sparse communication for distributed gradient descent, EMNLP 2017", feedback="ef", downlink=CHANGES,
    ),
    Scheme(
        "topk", "topk:ratio=0.01", "the largest of every hundred coordinates, the rest remembered",
        "Stich et al., Sparsified SGD with memory, NeurIPS 2018", feedback=WEIGHTS_OWED,
        downlink="topk:ratio=0.01",
    ),
    Scheme(
        "polar", "polar:rate=1,block=16384", "polar source codes, nearly the least squared error of one bit, the rest remembered",
        "Korada and Urbanke, Polar codes are optimal for lossy source coding, IEEE Trans. IT 56, 2010", feedback="ef",
        downlink=CHANGES,
    ),
    Scheme(
        "countsketch", "countsketch:rows=5,ratio=0.1", "hashed sums; medians of five, the rest remembered",
        "Ivkin et al., Communication-efficient distributed SGD with sketching, NeurIPS 2019", feedback="ef", downlink=CHANGES,
    ),
    Scheme(
        "countmean", "countmean:rows=5,ratio=0.1", "hashed sums, added up undecoded; means of five, the rest remembered",
        "Alon, Matias, Szegedy, The space complexity of approximating the frequency moments, STOC 1996", feedback="ef",
        downlink=CHANGES,
    ),
    Scheme(
        "lss", "lss:bits=2", "the mean of a cluster of values, by its id, the rest remembered",
        "Ge et al., CASQ, CLUSTER 2021", feedback="ef", downlink=CHANGES,
    ),
    Scheme(
        "sketchml", "sketchml", "equally filled bins in sketches that never make a magnitude larger",
        "Jiang et al., SketchML, SIGMOD 2018", downlink=CHANGES,
    ),
    Scheme(
        "dgc", "topk:ratio=0.001,sampled=true", "deep gradient compression: momentum before sparsification",
        "Lin et al., Deep gradient compression, ICLR 2018", feedback="dgc:momentum=0.9",
        ratio_warmup=(0.25, 0.0625, 0.015625, 0.004), downlink=FEW_CHANGES,
    ),
)  # fmt: skip

SCHEMES: Mapping[str, Scheme] = MappingProxyType({scheme.name: scheme for scheme in _TABLE})
_NAMES = MappingProxyType({name: scheme for scheme in _TABLE for name in (scheme.name, *scheme.aliases)})

# Earlier values of rows that have changed since runs record their scheme. A run without a record goes on by these.
_DENSE_BEFORE = (
    "fp16", "bf16", "atomo", "atomo-entrywise", "nuqsgd", "natural", "dithered", "terngrad", "minmax", "onebit", "tbq",
    "efsignsgd", "randk", "graddrop", "polar", "countsketch", "countmean", "lss", "sketchml", "dgc",
)  # fmt: skip
_UNRECORDED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {name: {"downlink": DENSE} for name in _DENSE_BEFORE}
    | {name: {"downlink": DENSE, "momentum": 0.9, "lr": DENSE_RATE} for name in ("onebit", "tbq")}
    | {name: {"downlink": DENSE, "momentum": 0.9, "lr": DENSE_RATE, "feedback": "ef"} for name in ("efsignsgd", "randk")}
    | {"topk": {"feedback": "ef"}}
    | {"dgc": {"downlink": DENSE, "momentum": 0.0}}
)

# setting -> the codec's parameter, and that parameter's value for the setting's
_OVERRIDES: Mapping[str, tuple[str, Callable[[int], int]]] = MappingProxyType(
    {
        "svd_rank": ("rank", lambda rank: rank),
        "quantization_level": ("levels", lambda bits: 2**bits - 1),
        "bucket_size": ("bucket", lambda size: size),
    }
)


def resolve(config: Config, *, unrecorded: bool = False) -> Scheme:
    """The scheme that `config` names with its parameters and overrides applied; ConfigurationError if there is none.

    `codec` of the result is the full spec, every parameter written out. A downlink that the scheme chose is not used for
    a codec in the place of its own: it is dense then. `unrecorded`: by the rules as they were when runs did not record
    their scheme yet.
    """
    from psnode.codecs import get_codec
    from psnode.feedback import get_feedback

    if config.codec:
        config = replace(config, codec=load_codec(config.codec))
    scheme, settings, added = _named(config.scheme)
    if unrecorded:
        scheme = replace(scheme, **{**_BEFORE, **_UNRECORDED.get(scheme.name, {})})
    codec = get_codec(_spec(config, scheme, settings, added))
    feedback, aggregator = config.feedback or scheme.feedback, config.aggregator or scheme.aggregator
    rule = get_feedback(feedback)
    usual, lr = pace_of(config, rule, scheme.momentum, scheme.lr)
    momentum = momentum_of(config, rule, aggregator, usual)
    ladder = scheme.ratio_warmup
    if unrecorded:
        momentum = scheme.momentum if config.momentum is None else config.momentum
    else:
        refuse_what_has_no_effect(config, rule, codec, aggregator, momentum)
        ladder = ladder_to(_ratio(repr(codec)), ladder)
    by_rate = moves_by_rate(rule, codec, aggregator)
    return replace(
        _warmed_up(replace(scheme, ratio_warmup=ladder), config.sparsity_warmup_epochs),
        codec=repr(codec),
        feedback=feedback,
        aggregator=aggregator,
        downlink=_downlink(config.downlink or (DENSE if config.codec else scheme.downlink), codec),
        momentum=momentum,
        lr=lr if by_rate == (lr == UNIT_RATE) else UNIT_RATE if by_rate else DENSE_RATE,
    )


def _spec(config: Config, scheme: Scheme, settings: dict[str, str], added: Sequence[Stage]) -> str:
    """The spec of the codec that `config` asks for; `settings` and `added` are the text behind the scheme's name."""
    if (settings or added) and config.codec:
        raise ConfigurationError(f"--scheme {config.scheme} changes a codec that --codec replaces: leave one of the two out")
    if config.codec:
        return _overridden(config, config.codec, parse(config.codec)[1])
    own = parse(scheme.codec)[1]
    asked = (Stage("", settings), *(Stage("", {}) for _ in own[1:]), *added)
    return _overridden(config, "+".join([_join(scheme.codec, {0: settings}), *map(_written, added)]), asked)


def _warmed_up(scheme: Scheme, epochs: float | None) -> Scheme:
    """`scheme` with its warm-up stretched or shortened to `epochs`; None: as it is."""
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


def _ratio(spec: str) -> float | None:
    """The ratio of the sparsifier in a full `spec`; None if there is none."""
    return next((float(stage.settings["ratio"]) for stage in parse(spec)[1] if "ratio" in stage.settings), None)


def with_ratio(spec: str, ratio: float) -> str:
    """`spec` with the ratio of its sparsifier set to `ratio`; unchanged if it has none."""
    from psnode.codecs import get_codec

    stages = parse(repr(get_codec(spec)))[1]
    return _join(spec, {index: {"ratio": repr(ratio)} for index, stage in enumerate(stages) if "ratio" in stage.settings})


def phases(spec: str, warmup: Sequence[float]) -> list[str]:
    """The specs of a codec in the phases of a warm-up through the ratios of `warmup`, and after it: `spec`, the last."""
    from psnode.codecs import get_codec

    return [*(with_ratio(spec, ratio) for ratio in warmup if not get_codec(spec).lossless), spec]


def _named(text: str) -> tuple[Scheme, dict[str, str], tuple[Stage, ...]]:
    """The scheme of a text such as `topk:ratio=0.005+fp16`, the settings of its codec, and the stages to be added to that."""
    name = text.partition(":")[0].partition("+")[0].strip()
    scheme = _NAMES.get(name.casefold())
    if scheme is None:
        raise ConfigurationError(f"--scheme must be one of {', '.join(SCHEMES)}, not {name!r}{nearest(name, _NAMES)}")
    first, *added = parse(text)[1]
    return scheme, first.settings, tuple(added)


def _written(stage: Stage) -> str:
    return f"{stage.id}:{','.join(f'{key}={value}' for key, value in stage.settings.items())}".removesuffix(":")


def _join(spec: str, changes: Mapping[int, Mapping[str, str]]) -> str:
    """`spec` with the parameters of stage i set to those of `changes[i]`."""
    wrapped, stages = parse(spec)
    parts = []
    for index, stage in enumerate(stages):
        parts.append(_written(Stage(stage.id, {**stage.settings, **changes.get(index, {})})))
    return f"contractive({'+'.join(parts)})" if wrapped else "+".join(parts)


def _overridden(config: Config, spec: str, asked: Sequence[Stage]) -> str:
    """`spec` with --svd-rank, --quantization-level and --bucket-size set in the first stage that has the parameter.

    They may not contradict `asked`: the stages as the user wrote them.
    """
    from psnode.codecs import get_codec

    for name, (parameter, convert) in _OVERRIDES.items():
        given = getattr(config, name)
        if given is None:
            continue
        flag, value = f"--{name.replace('_', '-')} {given}", str(convert(given))
        stages = parse(repr(get_codec(spec)))[1]
        found = [index for index, stage in enumerate(stages) if parameter in stage.settings]
        if not found:
            raise ConfigurationError(f"{flag} has no meaning for codec {spec}, which has no {parameter}: leave it out")
        index = found[0]
        if index < len(asked) and parameter in asked[index].settings and stages[index].settings[parameter] != value:
            written = f"{parameter}={asked[index].settings[parameter]}"
            raise ConfigurationError(
                f"{flag} means {parameter}={value} but the codec is given {written}: leave one of the two out"
            )
        spec = _join(spec, {index: {parameter: value}})
    return spec


def _downlink(spec: str, uplink: Codec) -> str:
    """The full spec of a downlink, or `dense`."""
    from psnode.codecs import get_codec

    if spec == DENSE:
        return spec
    codec = get_codec(spec)
    if codec.lossless:
        raise ConfigurationError(f"--downlink {spec} is lossless: write dense, which sends the weights themselves")
    if codec.traits.refit > 1:
        raise ConfigurationError(f"--downlink {spec} keeps no codebook from step to step: leave refit={codec.traits.refit} out")
    if codec.shaped and not uplink.shaped:
        raise ConfigurationError(f"--downlink {spec} needs tensors one by one, but {uplink!r} joins them: use svd up as well")
    return repr(codec)
