"""The table of schemes: combinations of methods from papers, one per row.

The default scheme is named by psnode.config.train_settings.DEFAULT_SCHEME.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from psnode.config.effects import DENSE_RATE, PLAIN_RATE, UNIT_RATE
from psnode.config.names import DENSE
from psnode.config.scheme import Scheme

# error feedback without momentum, as in the papers: delayed gradients from a residual make a momentum overshoot
_PLAIN: Mapping[str, Any] = MappingProxyType(
    {"momentum": 0.0, "lr": PLAIN_RATE, "rule": "that of SGD without momentum, ten times that with momentum .9"}
)
WEIGHTS_OWED = "ef:rescale=true"  # for papers whose residual includes the learning rate
CHANGES = "topk:ratio=0.1+scaledsign"  # a downlink of about .6 bits per coordinate
LEAD = 0.3  # lead in multiples of the last change of the weights: docs/results/2026-11-26-lead.md
LEAD_OF_ONE_BIT = 0.8  # more, because one bit delays gradients and weights more: docs/results/2026-11-30-one-bit.md
ONE_BIT = "polar:rate=1,block=16384"
NEAR_THE_BOUND = "polar:rate=2,block=16384"  # error only tenths of a decibel above the least possible at two bits per coordinate
# about .5 bits per coordinate, enough if the uplink sends few coordinates and no codec spreads them
FEW_CHANGES = "topk:ratio=0.02+fp16"

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
        "ecq", "qsgd:levels=15,bucket=512", "qsgd of the gradient and a share of the decaying error of earlier steps",
        "Wu et al., Error compensated quantized SGD, ICML 2018", feedback="ecq:alpha=0.2,beta=0.9",
        downlink="qsgd:levels=15,bucket=512",
    ),
    Scheme(
        "atomo", "svd:rank=3,method=deflated", "a few singular triples, sampled with the least variance, unbiased",
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
        "adacomp", "adacomp", "entries that a gradient more would make the largest of their bin, as signs, the rest remembered",
        "Chen et al., AdaComp, AAAI 2018", feedback="ef", downlink=CHANGES,
    ),
    Scheme(
        "topk", "topk:ratio=0.01", "the largest of every hundred coordinates, the rest remembered",
        "Stich et al., Sparsified SGD with memory, NeurIPS 2018", feedback=WEIGHTS_OWED,
        downlink="topk:ratio=0.01", **_PLAIN,
    ),
    Scheme(
        "polar", ONE_BIT, "polar source codes, nearly the least squared error of one bit, the rest remembered",
        "Korada and Urbanke, Polar codes are optimal for lossy source coding, IEEE Trans. IT 56, 2010", feedback="ef",
        downlink=CHANGES,
    ),
    Scheme(
        "polar-2bit", NEAR_THE_BOUND, "polar source codes of two bits a coordinate both ways, the rest remembered",
        "Korada and Urbanke, Polar codes are optimal for lossy source coding, IEEE Trans. IT 56, 2010", feedback="ef",
        downlink=NEAR_THE_BOUND, downlink_lead=LEAD,
    ),
    Scheme(
        "polar-1bit", ONE_BIT, "polar source codes of one bit a coordinate both ways, the rest remembered",
        "Korada and Urbanke, Polar codes are optimal for lossy source coding, IEEE Trans. IT 56, 2010", feedback="ef",
        downlink=ONE_BIT, downlink_lead=LEAD_OF_ONE_BIT,
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
    Scheme(
        "atomo-fourier", "fourier", "cosines of blocks of 64, sampled with the least variance, unbiased",
        "Wang et al., ATOMO, NeurIPS 2018, which announces this basis", downlink=CHANGES,
    ),
)  # fmt: skip

SCHEMES: Mapping[str, Scheme] = MappingProxyType({scheme.name: scheme for scheme in _TABLE})
NAMES = MappingProxyType({name: scheme for scheme in _TABLE for name in (scheme.name, *scheme.aliases)})

# settings of a run that make its scheme
SETTINGS = (
    "scheme", "codec", "feedback", "aggregator", "downlink", "downlink_lead", "svd_rank", "quantization_level",
    "sparsity_warmup_epochs", "bucket_size",
)  # fmt: skip

# Earlier values of rows that have changed. A run from the time before runs recorded their scheme resumes with these values.
_DENSE_BEFORE = (
    "fp16", "bf16", "atomo", "atomo-entrywise", "nuqsgd", "natural", "dithered", "terngrad", "minmax", "onebit", "tbq",
    "efsignsgd", "randk", "graddrop", "polar", "countsketch", "countmean", "lss", "sketchml", "dgc",
)  # fmt: skip
UNRECORDED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {name: {"downlink": DENSE} for name in _DENSE_BEFORE}
    | {name: {"downlink": DENSE, "momentum": 0.9, "lr": DENSE_RATE} for name in ("onebit", "tbq")}
    | {name: {"downlink": DENSE, "momentum": 0.9, "lr": DENSE_RATE, "feedback": "ef"} for name in ("efsignsgd", "randk")}
    | {"atomo": {"downlink": DENSE, "codec": "svd:rank=3"}}
    | {"topk": {"momentum": 0.9, "lr": DENSE_RATE, "feedback": "ef"}}
    | {"dgc": {"downlink": DENSE, "momentum": 0.0}}
)
