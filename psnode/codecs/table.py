"""Every stage there is: its id, its stable number on the wire, and the class behind it.

Numbers are never reused. A number without a class is reserved: specs and payloads that name it are refused.
Classes are imported when they are first asked for, so that listing codecs costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """`number` on the wire (1..255); `target` is "module:Class" below psnode.codecs, empty while reserved."""

    number: int
    target: str = ""


CODECS = {
    "identity": Entry(1, "identity:Identity"),
    "fp16": Entry(2, "fp16:Fp16"),
    "bf16": Entry(3, "bf16:Bf16"),
    "svd": Entry(4, "svd:Svd"),
    "qsgd": Entry(5, "qsgd:Qsgd"),
    "nuqsgd": Entry(6, "nuqsgd:Nuqsgd"),
    "natural": Entry(7, "natural:Natural"),
    "dithered": Entry(8, "dithered:Dithered"),
    "terngrad": Entry(9, "terngrad:TernGrad"),
    "minmax": Entry(10, "minmax:MinMax"),
    "onebit": Entry(11, "onebit:OneBit"),
    "sign": Entry(12, "sign:Sign"),
    "scaledsign": Entry(13, "scaledsign:ScaledSign"),
    "tbq": Entry(14, "tbq:Tbq"),
    "entrywise": Entry(15, "entrywise:Entrywise"),
    "topk": Entry(16, "topk:Topk"),
    "randk": Entry(17, "randk:Randk"),
    "threshold": Entry(18, "threshold:Threshold"),
    "graddrop": Entry(19, "graddrop:Graddrop"),
    "blosc": Entry(20, "blosc:Blosc"),
    "polar": Entry(21, "polar:Polar"),
    "lss": Entry(22, "lss:Lss"),
    "sketchml": Entry(23, "sketchml:SketchMl"),
    "countsketch": Entry(24, "countsketch:CountSketch"),
    "countmean": Entry(25, "countmean:CountMean"),
    "powersgd": Entry(26),
}
LOSSLESS = {
    "zstd": Entry(64, "entropy.zstd:Zstd"),
    "ans": Entry(65, "entropy.ans:Ans"),
    "rice": Entry(66, "entropy.rice:Rice"),
}
WRAPPERS = {
    "contractive": Entry(96, "contractive:Contractive"),
}

_STAGES = CODECS | LOSSLESS | WRAPPERS
NAMES = {entry.number: name for name, entry in _STAGES.items() if entry.target}


def number_of(name: str) -> int:
    """The wire number of stage `name`."""
    return _STAGES[name].number


def load(name: str) -> Any:
    """The class of stage `name`, imported now."""
    module, _, attribute = _STAGES[name].target.partition(":")
    return getattr(import_module(f"psnode.codecs.{module}"), attribute)
