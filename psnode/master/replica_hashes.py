"""Hashes of the published weights, which the workers' own are compared with."""

from __future__ import annotations

import xxhash

from psnode.codecs.arrays import Floats
from psnode.errors import DivergedError

_KEPT = 16  # versions, for reports that come late


class ReplicaHashes:
    """xxh3_64 of y at every `every`-th version; 0: of none."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._hashes: dict[int, int] = {}

    def due(self, version: int) -> bool:
        """True if the weights of `version` are compared."""
        return bool(self._every) and version % self._every == 0

    def note(self, version: int, replica: Floats) -> None:
        """Hash y of `version`, if it is due. Version 0 is agreed on at the start."""
        if version and self.due(version):
            self._hashes[version] = xxhash.xxh3_64_intdigest(replica.data)
            self._hashes.pop(version - _KEPT * self._every, None)

    def compare(self, rank: int, step: int, version: int, found: int | None) -> None:
        """DivergedError if `rank` computed `step` on weights of the hash `found` that are not those of `version`."""
        expected = self._hashes.get(version)
        if found is not None and expected is not None and found != expected:
            raise DivergedError(
                f"rank {rank} computed step {step} on weights that differ from the published version {version}: its memory or a "
                "message was corrupted; go on with --resume"
            )
