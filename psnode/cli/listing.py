"""The listing of `psnode codecs`: every codec with its traits and every scheme, as data and as tables."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from psnode.codecs import Codec, available, get_codec
from psnode.config.schemes import SCHEMES

_TRAITS = ("unbiased", "lossless", "linear", "shaped", "sparse", "adaptive")
_SIZE = 1 << 20
_MATRIX = (1024, 1024)


def everything() -> dict[str, Any]:
    """`codecs` and `schemes`, in types that JSON has.

    A codec's `max_bits` are those a coordinate of a 1024 x 1024 matrix takes at most, header included.
    """
    return {
        "codecs": [_describe(get_codec(name)) for name in available()],
        "schemes": [dataclasses.asdict(s) for s in SCHEMES.values()],
    }


def _describe(codec: Codec) -> dict[str, Any]:
    return {
        "id": codec.id,
        "default": repr(codec),
        "summary": (inspect.getdoc(inspect.getmodule(codec)) or "").partition("\n")[0],
        **{trait: getattr(codec.traits, trait) for trait in _TRAITS},
        "max_bits": 8 * codec.max_nbytes(_MATRIX) / _SIZE,
    }


def show() -> None:
    """Print both tables."""
    from rich.console import Console
    from rich.table import Table

    found = everything()
    codecs = Table("codec", "default", "max bits", "traits", "what it does", title="Codecs", title_justify="left")
    for entry in found["codecs"]:
        traits = " ".join(["" if entry["unbiased"] else "biased", *(trait for trait in _TRAITS if entry[trait])]).strip()
        codecs.add_row(entry["id"], entry["default"].partition(":")[2], f"{entry['max_bits']:.2f}", traits, entry["summary"])
    schemes = Table("scheme", "codec", "feedback", "lr", "what it does", "paper", title="Schemes", title_justify="left")
    for entry in found["schemes"]:
        name = entry["name"] + "".join(f", {alias}" for alias in entry["aliases"] if alias != entry["name"])
        schemes.add_row(name, entry["codec"], entry["feedback"], f"{entry['lr']:g}", entry["summary"], entry["paper"])
    console = Console()
    console.print(codecs)
    console.print(schemes)
