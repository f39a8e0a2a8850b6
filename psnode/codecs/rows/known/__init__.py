"""Formulas of psnode's own codecs. So their payloads can be made on any processor.

A formula belongs to a codec at its settings; where rows cannot express those, it is None.
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
    """The formula of a codec that runs by one, or has one beside kernels by hand; None if there is none at its settings."""
    if isinstance(codec, Generated):
        return codec.formula()
    cls = _KNOWN.get(codec.id)
    return cls(codec) if cls is not None and cls.expresses(codec) else None


def ranking_of(codec: Codec) -> Ranking | None:
    """The formula by which a codec selects coordinates; None if it does not, or by other means."""
    return MagnitudeRanks() if codec.id in _RANKED else None


def has_formula(codec: Codec) -> bool:
    """True if kernels of `codec` are made of a formula, for a processor or for a device."""
    return formula_of(codec) is not None or ranking_of(codec) is not None
