"""Schemes: every row of the table can be built, and overrides are applied or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.config import Config, settings
from psnode.config.ratios import with_ratio
from psnode.config.resolve import resolve
from psnode.config.scheme import Scheme
from psnode.config.schemes import SCHEMES
from psnode.errors import ConfigurationError
from psnode.feedback import get_feedback


def parameters(**fields: Any) -> Any:
    """Return the codec of a configuration, so that codecs are compared instead of their specs."""
    return get_codec(resolve(Config(**fields)).codec)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_can_be_built(name: str) -> None:
    scheme = resolve(Config(scheme=name))
    assert scheme.name == name
    assert get_codec(scheme.codec) == get_codec(SCHEMES[name].codec)
    assert get_feedback(scheme.feedback)
    assert scheme.aggregator in ("mean", "majority")
    assert scheme.downlink == "dense" or get_codec(scheme.downlink)
    assert scheme.summary


@pytest.mark.parametrize("name", SCHEMES)
def test_names_and_aliases_are_unique_and_ignore_case(name: str) -> None:
    for alias in (name, *SCHEMES[name].aliases):
        assert resolve(Config(scheme=alias.upper())).name == name
    spelled = [word for scheme in SCHEMES.values() for word in {scheme.name, *scheme.aliases}]
    assert len(spelled) == len(set(spelled))


@pytest.mark.parametrize("name", ["dense", "fp32", "sgd", "identity"])
def test_names_of_the_baseline(name: str) -> None:
    assert resolve(Config(scheme=name)).codec == "identity"


def test_the_papers_defaults() -> None:
    assert parameters(scheme="atomo") == get_codec("svd:rank=3,method=deflated")
    assert parameters(scheme="qsgd") == get_codec("qsgd:levels=15,bucket=512,norm=l2")


def test_parameters_of_a_scheme_go_to_its_codec() -> None:
    assert parameters(scheme="atomo:rank=2,method=exact") == get_codec("svd:rank=2")
    assert parameters(scheme="qsgd:levels=3,norm=max") == get_codec("qsgd:levels=3,bucket=512,norm=max")


def test_stages_after_a_scheme_are_added_to_its_codec() -> None:
    assert parameters(scheme="topk:ratio=0.02+fp16") == get_codec("topk:ratio=0.02+fp16")
    assert parameters(scheme="QSGD+ans") == get_codec("qsgd+ans")
    assert parameters(scheme="topk+qsgd:levels=7+ans", bucket_size=64) == get_codec("topk+qsgd:levels=7,bucket=64+ans")


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({"scheme": "atomo", "svd_rank": 5}, "svd:rank=5,method=deflated"),
        ({"scheme": "atomo", "codec": "svd", "svd_rank": 5}, "svd:rank=5"),
        ({"scheme": "qsgd", "quantization_level": 2}, "qsgd:levels=3,bucket=512"),
        ({"scheme": "qsgd", "quantization_level": 4}, "qsgd:levels=15,bucket=512"),
        ({"scheme": "qsgd", "bucket_size": 128, "quantization_level": 1}, "qsgd:levels=1,bucket=128"),
        ({"scheme": "qsgd:levels=7", "bucket_size": 128}, "qsgd:levels=7,bucket=128"),
        ({"scheme": "qsgd:levels=7", "quantization_level": 3}, "qsgd:levels=7,bucket=512"),
        ({"scheme": "atomo", "codec": "qsgd:levels=1"}, "qsgd:levels=1"),
        ({"scheme": "dense", "codec": "svd:rank=2+qsgd:levels=7", "bucket_size": 64}, "svd:rank=2+qsgd:levels=7,bucket=64"),
        ({"scheme": "dense", "codec": "contractive(qsgd:levels=7)", "bucket_size": 64}, "contractive(qsgd:levels=7,bucket=64)"),
    ],
)
def test_overrides_of_the_codec(fields: dict[str, Any], spec: str) -> None:
    assert parameters(**fields) == get_codec(spec)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scheme": "atoms"}, "not 'atoms'; did you mean atomo"),
        ({"scheme": "qsgd:levls=3"}, "levls"),
        ({"scheme": "qsgd:levels"}, "levels"),
        ({"scheme": "qsgd:levels=0"}, "levels"),
        ({"codec": "nothing"}, "nothing"),
        ({"codec": "qsgd:levels=two"}, "levels"),
        ({"scheme": "qsgd:levels=3", "codec": "svd"}, "--scheme qsgd:levels=3 changes a codec that --codec replaces"),
        ({"scheme": "qsgd+ans", "codec": "svd"}, "--scheme qsgd+ans changes a codec that --codec replaces"),
        ({"scheme": "topk+fpp16"}, "did you mean fp16"),
        ({"scheme": "topk+svd"}, "is no chain"),
        ({"scheme": "topk+"}, "empty stage"),
        ({"scheme": ""}, "--scheme must be one of"),
        ({"scheme": "contractive(qsgd)"}, "--scheme must be one of"),
        ({"scheme": "qsgd", "svd_rank": 2}, "--svd-rank 2 has no meaning for codec qsgd"),
        ({"scheme": "dense", "bucket_size": 2}, "--bucket-size 2 has no meaning for codec identity"),
        ({"scheme": "atomo", "codec": "svd:rank=4", "svd_rank": 2}, "--svd-rank 2 means rank=2 but the codec is given rank=4"),
        ({"scheme": "atomo:rank=4", "svd_rank": 2}, "--svd-rank 2 means rank=2 but the codec is given rank=4"),
        (
            {"scheme": "qsgd:levels=4", "quantization_level": 2},
            "--quantization-level 2 means levels=3 but the codec is given levels=4",
        ),
        ({"feedback": "nothing"}, "feedback 'nothing'"),
        ({"feedback": "ef:decy=0.5"}, "decy"),
        ({"downlink": "qsdg"}, "did you mean qsgd"),
        ({"downlink": "identity"}, "--downlink identity is lossless: write dense"),
        ({"downlink": "lss:refit=5"}, "--downlink lss:refit=5 keeps no codebook"),
        ({"scheme": "qsgd", "sparsity_warmup_epochs": 1}, "no meaning with qsgd: the schemes with one are dgc"),
        ({"scheme": "qsgd", "downlink": "svd"}, "--downlink svd needs tensors one by one"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve(Config(**fields))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "downlink"),
    [("topk", "topk:ratio=0.01"), ("signsgd", "scaledsign"), ("atomo", "topk:ratio=0.1+scaledsign"), ("dense", "dense")],
)
def test_a_scheme_brings_its_downlink_for_its_own_codec_unless_another_is_named(name: str, downlink: str) -> None:
    found = resolve(Config(scheme=name)).downlink
    assert found == downlink or get_codec(found) == get_codec(downlink)
    assert resolve(Config(scheme=name, codec="qsgd")).downlink == "dense"
    assert resolve(Config(scheme=name, downlink="dense")).downlink == "dense"
    assert get_codec(resolve(Config(scheme=name, codec="qsgd", downlink="bf16")).downlink) == get_codec("bf16")


@pytest.mark.parametrize("name", SCHEMES)
def test_what_is_coded_up_is_coded_down_as_well(name: str) -> None:
    """Check that every scheme's downlink takes at most as many bytes as its uplink, or about one bit per coordinate if the
    uplink takes less.
    """
    scheme = resolve(Config(scheme=name))
    if name == "dense":
        assert scheme.downlink == "dense"
        return
    x = np.random.default_rng(1).standard_normal((500, 862)).astype(np.float32)
    up, down = (get_codec(spec).encode(x, np.random.default_rng(2)).nbytes for spec in (scheme.codec, scheme.downlink))
    assert down <= 1.01 * max(up, x.size / 8)


@pytest.mark.parametrize("name", ["randk", "dgc"])
def test_what_few_coordinates_change_goes_down_whole(name: str) -> None:
    """Check that the downlink sends the mean of four sparse gradients almost unchanged. The master has no momentum, under
    which more coordinates would change.

    Half precision changes values by a share of up to 2^-11.
    """
    scheme = resolve(Config(scheme=name))
    uplink, downlink = get_codec(scheme.codec), get_codec(scheme.downlink).contractive()
    rng, mean = np.random.default_rng(1), np.zeros(200_000, np.float32)
    for _ in range(4):  # workers draw with one seed
        gradient = rng.standard_normal(mean.size).astype(np.float32)
        uplink.decode_add(uplink.encode(gradient, np.random.default_rng(2)), mean, 0.25)
    assert scheme.momentum == 0
    moved = downlink.decode(downlink.encode(mean, np.random.default_rng(3)))
    np.testing.assert_allclose(moved, mean, rtol=2**-11, atol=0)


def test_where_no_weights_are_sent_a_scheme_brings_no_downlink() -> None:
    """Check that polar-2bit sets neither downlink nor lead under gather, where no changes of weights are sent; the lead is a
    multiple of the weights' last change.
    """
    assert resolve(Config(optimizer="adamw", scheme="polar-2bit")).downlink_lead > 0
    scheme = resolve(Config(optimizer="adamw", scheme="polar-2bit", topology="gather"))
    assert (scheme.downlink, scheme.downlink_lead) == ("dense", 0)
    with pytest.raises(ConfigurationError, match=r"^--downlink-lead needs changes of weights that are coded"):
        resolve(Config(scheme="polar-2bit", topology="gather", downlink_lead=1.0))


def test_feedback_downlink_and_momentum_of_the_configuration_win() -> None:
    scheme = resolve(Config(scheme="atomo", feedback="ef", downlink="bf16", momentum=0.5))
    assert (scheme.feedback, scheme.downlink, scheme.momentum) == ("ef", "bf16", 0.5)
    untouched = resolve(Config(scheme="atomo"))
    assert (untouched.feedback, untouched.momentum) == ("none", 0.9)
    assert get_codec(untouched.downlink) == get_codec("topk:ratio=0.1+scaledsign")
    assert resolve(Config(momentum=0.0)).momentum == 0.0


@pytest.mark.parametrize("name", ["onebit", "tbq", "efsignsgd", "randk"])
def test_error_feedback_without_momentum_has_ten_times_the_rate_of_dense_sgd(name: str) -> None:
    """Check that the rate is dense.lr / (1 - .9) without momentum: with momentum .9, a gradient g contributes g / (1 - .9)
    in total.
    """

    def pace(**fields: Any) -> tuple[float, float]:
        scheme = resolve(Config(scheme=name, **fields))
        return scheme.momentum, scheme.lr

    dense = resolve(Config(scheme="dense"))
    assert pace() == (0, pytest.approx(dense.lr / (1 - dense.momentum)))
    assert pace(momentum=0.9) == (0.9, dense.lr)
    assert pace(momentum=0.0) == pace()
    assert pace(optimizer="adam") == (0.9, dense.lr)


def test_a_momentum_at_the_sender_has_the_rate_of_dense_sgd() -> None:
    scheme = resolve(Config(scheme="randk", feedback="dgc"))
    assert (scheme.momentum, scheme.lr) == (0, 0.01)


def test_momentum_on_both_sides_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="added to that of feedback dgc"):
        resolve(Config(scheme="dgc", momentum=0.9))
    assert resolve(Config(scheme="dgc", momentum=0.0)).momentum == 0


def test_the_ratio_of_a_chain_can_be_set_and_of_others_left() -> None:
    assert with_ratio(get_codec("topk:ratio=0.01+qsgd:levels=7"), 0.25) == get_codec("topk:ratio=0.25+qsgd:levels=7")
    assert with_ratio(get_codec("qsgd:levels=7"), 0.25) == get_codec("qsgd:levels=7")


@pytest.mark.parametrize("fields", [{"momentum": 0.9}, {"weight_decay": 0.1}])
def test_a_vote_takes_no_momentum_or_decay_on_the_master(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="majority vote takes neither"):
        resolve(Config(scheme="signsgd", **fields))


def test_the_warm_up_of_the_ratio_can_be_stretched_or_left_out() -> None:
    usual, short, none = (resolve(Config(scheme="dgc", sparsity_warmup_epochs=epochs)) for epochs in (None, 0.5, 0))
    assert (len(usual.ratio_warmup), usual.ratio_epochs) == (4, 1)
    assert (short.ratio_warmup, short.ratio_epochs) == (usual.ratio_warmup, 0.125)
    assert none.ratio_warmup == ()


@pytest.mark.parametrize("name", ["dgc", "signsgd", "signum"])
def test_nesterovs_form_of_a_momentum_that_the_master_does_not_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="--nesterov"):
        resolve(Config(scheme=name, nesterov=True))
    assert resolve(Config(scheme=name, nesterov=True), unrecorded=True).momentum == 0  # an older run continues unchanged
    assert resolve(Config(scheme="dense", nesterov=True)).momentum == 0.9


@pytest.mark.parametrize(
    ("ratio", "ladder"),
    [
        ("0.001", (0.25, 0.0625, 0.015625, 0.004)), ("0.004", (0.25, 0.0625, 0.015625)), ("0.05", (0.25, 0.0625)),
        ("0.1", (0.25,)), ("0.25", ()), ("0.5", ()),
    ],
)  # fmt: skip
def test_the_warm_up_of_the_ratio_falls_to_that_of_the_codec_and_no_further(ratio: str, ladder: tuple[float, ...]) -> None:
    assert resolve(Config(scheme=f"dgc:ratio={ratio}")).ratio_warmup == ladder
    assert resolve(Config(scheme="dgc", codec=f"randk:ratio={ratio}")).ratio_warmup == ladder
    if ladder:
        stretched = resolve(Config(scheme=f"dgc:ratio={ratio}", sparsity_warmup_epochs=3))
        assert stretched.ratio_epochs * len(ladder) == pytest.approx(3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scheme": "dgc:ratio=0.3", "sparsity_warmup_epochs": 1}, "no ratio of dgc's warm-up is above the codec's own"),
        ({"scheme": "dgc", "codec": "threshold", "sparsity_warmup_epochs": 1}, "no ratio of dgc's warm-up is above"),
        ({"scheme": "qsgd", "feedback": "dgc"}, "sends every coordinate"),
        ({"scheme": "dense", "feedback": "dgc"}, "identity loses nothing"),
        ({"scheme": "tbq", "feedback": "dgc"}, "sends every coordinate"),
        ({"scheme": "dense", "feedback": "ef"}, "feedback ef would have nothing to remember"),
        ({"scheme": "signsgd", "feedback": "ef"}, "a majority vote never sends"),
        ({"scheme": "topk", "aggregator": "majority"}, "a majority vote never sends"),
        ({"scheme": "signsgd", "optimizer": "adam"}, "--optimizer adam would divide a vote by its own size"),
        ({"scheme": "signsgd", "nesterov": True}, "--nesterov is a form of the master's momentum, which is 0 here: leave it out"),
        ({"scheme": "dgc", "nesterov": True}, "write --feedback dgc:nesterov=true"),
        ({"scheme": "dense", "min_compress_bytes": 0}, "--min-compress-bytes has no meaning for identity"),
        ({"scheme": "dense", "small_tensors": "coded"}, "--small-tensors coded has no meaning for identity, which sends all"),
        ({"scheme": "atomo", "small_tensors": "coded"}, "which codes matrices: leave it out"),
        (
            {"scheme": "polar", "downlink": "dense", "downlink_lead": 0.5},
            "--downlink-lead needs changes of weights that are",
        ),
        ({"codec": "polar", "downlink_lead": 0.5}, "the downlink is dense: leave it out"),
    ],
)
def test_what_would_have_no_effect_beside_the_rest_is_refused_in_one_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve(Config(**fields))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["efsignsgd", "topk", "randk"])
def test_papers_that_carry_the_learning_rate_in_the_memory_have_it_there(name: str) -> None:
    """Check that the memories of these schemes contain the learning rate, except in older runs and under a feedback that the
    user names. Karimireddy et al., algorithm 1: p = gamma g + e. Stich et al., algorithm 1: m + eta grad f.
    """
    assert get_feedback(resolve(Config(scheme=name)).feedback).rescales
    assert not get_feedback(resolve(Config(scheme=name), unrecorded=True).feedback).rescales
    assert not get_feedback(resolve(Config(scheme=name, feedback="ef")).feedback).rescales


@pytest.mark.parametrize(
    ("fields", "lead"),
    [
        ({"scheme": "polar-2bit"}, 0.3),
        ({}, 0.3),  # the default scheme
        ({"scheme": "polar-2bit", "downlink_lead": 0.0}, 0.0),
        ({"scheme": "polar-2bit", "downlink_lead": 0.5}, 0.5),
        ({"scheme": "polar-2bit", "downlink": "dense"}, 0.0),
        ({"scheme": "polar-2bit", "downlink": "polar:rate=1"}, 0.0),
        ({"scheme": "polar-2bit", "codec": "polar:rate=3"}, 0.0),
        ({"scheme": "polar"}, 0.0),
        ({"scheme": "polar-1bit"}, 0.8),
        ({"scheme": "polar-1bit", "codec": "polar:rate=1.5"}, 0.0),
    ],
)
def test_the_lead_of_a_schemes_downlink_belongs_to_that_downlink(fields: dict[str, Any], lead: float) -> None:
    found = resolve(Config(optimizer="adamw", **fields))
    assert found.downlink_lead == lead
    assert Scheme.from_dict(found.to_dict()).downlink_lead == lead


@pytest.mark.parametrize("optimizer", settings()["optimizer"].rules.choices)
def test_a_scheme_leads_under_every_optimizer_but_sgd(optimizer: str) -> None:
    """Check that updates that are sums of gradients are not led, unless the user asks for a lead: a lead L lowers the largest
    stable rate of SGD with the momentum m by up to 1 + 2 L.
    """
    assert resolve(Config(optimizer=optimizer)).downlink_lead == (0 if optimizer in ("sgd", "asgd") else 0.3)
    assert bool(resolve(Config(optimizer=optimizer, scheme="polar-1bit")).downlink_lead) == (optimizer not in ("sgd", "asgd"))
    assert resolve(Config(optimizer=optimizer, downlink_lead=0.5)).downlink_lead == 0.5
