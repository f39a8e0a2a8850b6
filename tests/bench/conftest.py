"""The fixture `in_this_process`, which runs the jobs of the convergence table in the process of the tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from psnode import cli
from psnode.bench.convergence import convergence_run


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run jobs in this process, one at a time, so that PyTorch is not imported for each."""
    turn = threading.Lock()  # PyTorch's random generator is shared by all threads

    def psnode(arguments: Sequence[str]) -> int:
        with turn:
            return cli.main(arguments)

    monkeypatch.setattr(convergence_run, "run_psnode", psnode)
