"""Formulas of psnode's own codecs, from which kernels for CPUs and GPUs are generated.

A formula belongs to a codec with certain parameters. A codec has no formula if rows cannot express its parameters.
"""

from __future__ import annotations

from psnode.codecs.base import Codec
from psnode.codecs.rows.codec import Generated
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.known.qsgd import QsgdRows
from psnode.codecs.rows.known.selections import MagnitudeRanks
from psnode.codecs.rows.known.tbq import TbqRows
from psnode.codecs.rows.selection_rank import Ranking

_KNOWN: dict[str, type[Known]] = {
    "qsgd": QsgdRows,
    "tbq": TbqRows,
}
_RANKED = ("graddrop", "threshold", "topk")


def formula_of(codec: Codec) -> Formula | None:
    """Return the formula of a codec, or None if it has no formula. The codec may also have hand-written kernels."""
    if isinstance(codec, Generated):
        return codec.formula()
    cls = _KNOWN.get(codec.id)
    return cls(codec) if cls is not None and cls.expresses(codec) else None


def ranking_of(codec: Codec) -> Ranking | None:
    """Return the formula by which `codec` ranks coordinates, or None if the codec does not select coordinates by rank."""
    return MagnitudeRanks() if codec.id in _RANKED else None


def has_formula(codec: Codec) -> bool:
    """Return True if kernels of `codec` for a CPU or for a GPU are generated from a formula."""
    return formula_of(codec) is not None or ranking_of(codec) is not None
