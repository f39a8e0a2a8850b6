"""Codecs that search what they are given for what to send: a sum or a difference need not be made for them beforehand."""

from __future__ import annotations

from abc import abstractmethod

from psnode.codecs.base import Bytes, Codec, Floats, Parts, Words
from psnode.codecs.selection.scans import Copied, Difference, Plain, Source, Summed


class Searching(Codec):
    """All that codes an array and moves another by what was decoded, for a codec that reads a Source."""

    adds_finite = True

    @abstractmethod
    def _encode_source(self, source: Source, key: Words, body: Bytes, target: Floats, weight: int) -> int:
        """Write the body, add `weight` (1 or -1) times what is decoded to `target`, of the array's shape; the body's length."""

    def _encode_error(self, x: Floats, key: Words, body: Bytes, error: Floats) -> int:
        source = Plain(x) if error.ctypes.data == x.ctypes.data else Copied(x, error)
        return self._encode_source(source, key, body, error, -1)

    def _encode_parts(self, parts: Parts, key: Words, body: Bytes, residual: Floats) -> int:
        return self._encode_source(Summed(parts, residual), key, body, residual, -1)

    def _encode_change(self, x: Floats, y: Floats, key: Words, body: Bytes, room: Floats) -> int:
        return self._encode_source(Difference(x, y, room), key, body, y, 1)
