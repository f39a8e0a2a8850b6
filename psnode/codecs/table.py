"""Table of all known stages: id, wire number (which never changes) and class.

Numbers are never reused. A number without a class is reserved: specs and payloads that name it are refused. A class is imported
when it is first needed, so that listing the codecs does not import them. The numbers 192 to 255 are for codecs from outside
psnode. Such a codec comes from a file (psnode.codecs.registry) or from a package with an entry point in the group
psnode.codecs.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from psnode.errors import CodecSpecError

OUTSIDE = range(192, 256)  # numbers of codecs from outside psnode
GROUP = "psnode.codecs"  # a group of entry points, each named after the id of its codec


class CodecEntry(NamedTuple):
    """Wire number (1..255) and class of a stage.

    `target` names the class as "module:Class" below psnode.codecs. It is empty if the number is reserved.
    """

    number: int
    target: str = ""


CODECS = {
    "identity": CodecEntry(1, "identity:Identity"),
    "fp16": CodecEntry(2, "fp16:Fp16"),
    "bf16": CodecEntry(3, "bf16:Bf16"),
    "svd": CodecEntry(4, "svd:Svd"),
    "qsgd": CodecEntry(5, "qsgd:Qsgd"),
    "nuqsgd": CodecEntry(6, "nuqsgd:Nuqsgd"),
    "natural": CodecEntry(7, "natural:Natural"),
    "dithered": CodecEntry(8, "dithered:Dithered"),
    "terngrad": CodecEntry(9, "terngrad:TernGrad"),
    "minmax": CodecEntry(10, "minmax:MinMax"),
    "onebit": CodecEntry(11, "onebit:OneBit"),
    "sign": CodecEntry(12, "sign:Sign"),
    "scaledsign": CodecEntry(13, "scaledsign:ScaledSign"),
    "tbq": CodecEntry(14, "tbq:Tbq"),
    "entrywise": CodecEntry(15, "entrywise:Entrywise"),
    "topk": CodecEntry(16, "topk:Topk"),
    "randk": CodecEntry(17, "randk:Randk"),
    "threshold": CodecEntry(18, "threshold:Threshold"),
    "graddrop": CodecEntry(19, "graddrop:Graddrop"),
    "blosc": CodecEntry(20, "blosc:Blosc"),
    "polar": CodecEntry(21, "polar:Polar"),
    "lss": CodecEntry(22, "lss:Lss"),
    "sketchml": CodecEntry(23, "sketchml:SketchMl"),
    "countsketch": CodecEntry(24, "countsketch:CountSketch"),
    "countmean": CodecEntry(25, "countmean:CountMean"),
    "powersgd": CodecEntry(26),
    "fourier": CodecEntry(27, "fourier:Fourier"),
    "adacomp": CodecEntry(28, "adacomp:AdaComp"),
}
LOSSLESS = {
    "zstd": CodecEntry(64, "entropy.zstd:Zstd"),
    "ans": CodecEntry(65, "entropy.ans:Ans"),
    "rice": CodecEntry(66, "entropy.rice:Rice"),
}
WRAPPERS = {
    "contractive": CodecEntry(96, "contractive:Contractive"),
}

# Names of codecs in papers that are names of schemes in psnode (psnode.config.schemes), each with the codec of the scheme
SCHEMES = {
    "dense": "identity", "fp32": "identity", "sgd": "identity", "ecq": "qsgd:levels=15,bucket=512",
    "atomo": "svd:rank=3,method=deflated", "atomo-entrywise": "entrywise", "atomo-fourier": "fourier",
    "signsgd": "sign", "signum": "sign", "efsignsgd": "scaledsign", "dgc": "topk:ratio=0.001,sampled=true",
    "polar-1bit": "polar:rate=1,block=16384", "polar-2bit": "polar:rate=2,block=16384",
}  # fmt: skip
# Methods that psnode does not have, each with the most similar codec
NEAREST = {"powersgd": "svd, with low-rank factors of every matrix anew in each step"}

_STAGES = CODECS | LOSSLESS | WRAPPERS
NAMES = {entry.number: name for name, entry in _STAGES.items() if entry.target}


_OUTSIDE: dict[str, Any] = {}  # id -> class


def number_of(name: str) -> int:
    """Return the wire number of stage `name`. Raises CodecSpecError for a codec from outside psnode that is not registered."""
    if name in _OUTSIDE:
        number: int = _OUTSIDE[name].number
        return number
    try:
        return _STAGES[name].number
    except KeyError:
        raise CodecSpecError(f"the codec {name} is not registered: call psnode.codecs.register with its class first") from None


def load(name: str) -> Any:
    """Import and return the class of stage `name`."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    module, _, attribute = _STAGES[name].target.partition(":")
    return getattr(import_module(f"psnode.codecs.{module}"), attribute)


def add(cls: Any) -> None:
    """Add a codec class from outside psnode under its `id` and `number`. It replaces a class that was added with both.

    Raises ValueError if a codec with another id has this number, or a codec with another number has this id.
    """
    holder = NAMES.get(cls.number, cls.id)
    if cls.id in _STAGES or holder != cls.id:
        raise ValueError(f"id {cls.id}" if cls.id in _STAGES else f"number {cls.number}, that of {holder}")
    if (before := _OUTSIDE.get(cls.id)) is not None and before.number != cls.number:
        raise ValueError(f"id {cls.id}")
    _OUTSIDE[cls.id] = cls
    NAMES[cls.number] = cls.id


def codecs() -> list[str]:
    """Return the ids of all codecs, sorted: those of psnode, those that were added, and those that installed packages offer."""
    own = [name for name, entry in CODECS.items() if entry.target]
    return sorted({*own, *_OUTSIDE, *offered()})


def is_known(name: str) -> bool:
    """Return True if `name` is the id of a codec of psnode or of a codec that was added."""
    return name in _OUTSIDE or (name in CODECS and bool(CODECS[name].target))


def offered() -> dict[str, EntryPoint]:
    """Return the entry points of codecs in installed packages, by the codec's id, without importing the codecs."""
    return {point.name: point for point in entry_points(group=GROUP)}


def meaning(name: str) -> str:
    """Return a sentence that explains `name` if it is in SCHEMES or NEAREST, and thus no codec's id; else an empty string."""
    found = name.casefold().replace("_", "-")
    if found in SCHEMES:
        return f"{name} is a scheme, which psnode codecs {found} explains; its codec is {SCHEMES[found]}"
    return f"psnode has no codec {name}; the nearest is {NEAREST[found]}" if found in NEAREST else ""
