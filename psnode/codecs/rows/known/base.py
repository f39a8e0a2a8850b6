"""Base class of the formulas of psnode's codecs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.values import Value
from psnode.codecs.table import number_of


class Known(ABC):
    """A formula for one of psnode's codecs."""

    may_overflow = False

    def __init__(self, codec: Any) -> None:
        self.codec, self.id, self.number = codec, codec.id, number_of(codec.id)

    @classmethod
    def expresses(cls, codec: Any) -> bool:
        """Return True if the formula expresses `codec` at its settings."""
        return True

    @abstractmethod
    def to_fields(self, v: Value) -> Fields:
        """Return the fields that are sent, as Formula.to_fields does."""

    @abstractmethod
    def from_fields(self, *fields: Any, **named: Any) -> Value:
        """Return the decoded values, as Formula.from_fields does."""
