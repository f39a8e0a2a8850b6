"""Codecs that search their source for the values to send: a sum or a difference need not be made for them beforehand."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from psnode.codecs.base import NOTHING, Bytes, Floats, Shape, Sink, Source, Words
from psnode.codecs.sinks import Moved
from psnode.codecs.stages import Reducer

if TYPE_CHECKING:
    from psnode.codecs.selection.largest import Entries


class Searching(Reducer):
    """A reducer that searches any source, alone or in a chain, and moves a target at the entries sent alone."""

    @abstractmethod
    def select(self, source: Source, key: Words, side: Bytes) -> tuple[int, Entries]:
        """The entries to send of `source`, after the bytes of `side` that their indices take. NonFiniteGradientError."""

    @abstractmethod
    def _at(self, side: Bytes, values: Floats, shape: Shape) -> Entries:
        """Side information and values as entries. Raises PayloadError."""

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return sink is NOTHING or isinstance(sink, Moved)
