"""MPI operations in progress, each with a callback that is called when the operation ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Then = Callable[[int], None]  # takes an MPI error code, 0 for success


class Requests:
    """Nonblocking operations, which are tested together. `mpi`: the module mpi4py.MPI."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._requests: list[Any] = []
        self._thens: list[Then] = []
        self._statuses: list[Any] = []

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Any, then: Then) -> None:
        """Call `then(error)` once `request` has ended."""
        self._requests.append(request)
        self._thens.append(then)
        if len(self._statuses) < len(self._requests):
            self._statuses.append(self._mpi.Status())

    def test(self) -> bool:
        """Let MPI make progress, and run the callbacks of operations that have ended. Return True if any has ended."""
        if not self._requests:
            return False
        try:
            ended = self._mpi.Request.Testsome(self._requests, self._statuses)
            errors = [0] * len(ended) if ended else []
        except self._mpi.Exception:
            # An operation failed. Requests that have ended are null now, and the first statuses are theirs, in the same order.
            ended = [i for i, request in enumerate(self._requests) if request == self._mpi.REQUEST_NULL]
            errors = [status.Get_error() for status in self._statuses[: len(ended)]]
        if not ended:
            return False
        due = [(self._thens[i], error) for i, error in sorted(zip(ended, errors, strict=True))]
        gone = set(ended)
        self._requests = [request for i, request in enumerate(self._requests) if i not in gone]
        self._thens = [then for i, then in enumerate(self._thens) if i not in gone]
        for then, error in due:
            then(error)
        return True
