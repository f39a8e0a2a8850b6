"""Base class of the formulas of psnode's codecs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.values import Value
from psnode.codecs.table import number_of


class Known(ABC):
    """A formula of one of psnode's codecs, with the codec's parameters."""

    may_overflow = False

    def __init__(self, codec: Any) -> None:
        self.codec, self.id, self.number = codec, codec.id, number_of(codec.id)

    @classmethod
    def expresses(cls, codec: Any) -> bool:
        """Return True if this class of formulas can express `codec` with its parameters."""
        return True

    @abstractmethod
    def to_fields(self, v: Value) -> Fields:
        """Return the fields to send, as Formula.to_fields does."""

    @abstractmethod
    def from_fields(self, *fields: Any, **named: Any) -> Value:
        """Return the decoded values, as Formula.from_fields does."""
