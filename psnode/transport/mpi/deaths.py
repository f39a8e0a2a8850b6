"""Detection of dead ranks with MPI's user-level failure mitigation (ULFM). Without ULFM no death is detected."""

from __future__ import annotations

from typing import Any


class Deaths:
    """Reports new deaths among the ranks of `world`, a communicator of mpi4py.

    Failures are acknowledged to MPI. Receives from any source then continue to work without the dead ranks.
    """

    def __init__(self, mpi: Any, world: Any) -> None:
        self._mpi, self._world = mpi, world
        self._known: frozenset[int] = frozenset()
        self._code = getattr(mpi, "ERR_PROC_FAILED", None)
        try:
            self.new()
        except (AttributeError, NotImplementedError, mpi.Exception):
            self._code = None

    def is_one(self, error: Any) -> bool:
        """Return True if `error`, an MPI exception, means that a process has failed."""
        return self._code is not None and error.Get_error_class() == self._code

    def new(self) -> frozenset[int]:
        """Return the ranks that died since the last call."""
        if self._code is None:
            return frozenset()
        failed = self._world.Get_failed()
        try:
            if failed.size == len(self._known):
                return frozenset()
            group = self._world.Get_group()
            ranks = frozenset(self._mpi.Group.Translate_ranks(failed, list(range(failed.size)), group))
            group.Free()
            self._world.Ack_failed(failed.size)
        finally:
            failed.Free()
        new, self._known = ranks - self._known, ranks
        return new
