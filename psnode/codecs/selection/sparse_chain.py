"""A chain that begins with a selector: one search, and what the quantiser makes of the values found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.base import Bytes, Floats, Words, readonly
from psnode.codecs.chain import Chain
from psnode.codecs.selection.scans import Source
from psnode.codecs.selection.searching import Searching
from psnode.codecs.selection.selector import Selector, add_at
from psnode.codecs.stages import write_section


@dataclass(frozen=True, repr=False)
class SparseChain(Searching, Chain):
    """As Chain. What the quantiser loses of a value stays behind, like the values that were not selected.

    Wrapped in Contractive, as chains with an unbiased quantiser are in feedback loops, it is handed the array as a whole.
    """

    reducer: Selector

    def _encode_source(self, source: Source, key: Words, body: Bytes, target: Floats, weight: int) -> int:
        used, entries = self.reducer.select(source, key, body[4 : 4 + self.reducer._max_parts(target.shape)[0]])
        start = write_section(body, used)
        end = start + self._encode_values(readonly(entries.values), key, body[start:])
        decoded = self._kept(readonly(body[start:end]), entries.values.size)
        add_at(target.reshape(-1), entries.indices, decoded, np.float32(weight))
        return end
