"""Reducers that select values while they read the source, so that a sum or difference need not be computed beforehand."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from psnode.codecs.base import NOTHING, Bytes, Floats, Shape, Sink, Source, Words
from psnode.codecs.sinks import Moved
from psnode.codecs.stages import Reducer

if TYPE_CHECKING:
    from psnode.codecs.selection.largest import Entries


class Searching(Reducer):
    """A reducer that can search any source, also in a chain, and that changes a sink's target only at the entries sent."""

    @abstractmethod
    def select(self, source: Source, key: Words, side: Bytes) -> tuple[int, Entries]:
        """Write the indices of the entries to send to `side`. Return their length in bytes and the entries.

        Raises NonFiniteGradientError.
        """

    @abstractmethod
    def _at(self, side: Bytes, values: Floats, shape: Shape) -> Entries:
        """Return the entries that have the indices in `side` and the values `values`. Raises PayloadError."""

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return sink is NOTHING or isinstance(sink, Moved)
