"""Memory of the master and of the workers: no copy of the model per worker, and about the predicted amount."""

from __future__ import annotations

import pytest

from psnode.records.metrics import peak_memory
from studies.harness import page, run
from studies.memory import STUDY, Options

pytestmark = [pytest.mark.serial, pytest.mark.skipif(peak_memory() is None, reason="needs Linux's /proc")]


@pytest.mark.long
def test_four_workers_add_their_coded_gradients_and_no_copy_of_the_model(forks: None) -> None:
    """Check that the master's memory grows only by coded gradients (.16 of the model each), at most two per worker: one
    being received, and one that waits to be added.
    """
    pytest.importorskip("mpi4py")
    result = run(STUDY, Options(workers=(1, 4), scheme=("nuqsgd",)))
    one, four = (row for row in result["rows"] if row["role"] == "master")
    assert one["model_bytes"] == four["model_bytes"] == 4 * 11_181_642  # torchvision's, with 10 classes
    assert 0.15 < one["coded"] < 0.17
    assert four["copies"] - one["copies"] < 3 * 2 * one["coded"] + 0.1
    # four vectors (weights, momentum, accumulator and y), fragmentation, and a difference in the process without the model
    assert 3.5 < one["copies"] < 6.5
    for row in result["rows"]:
        # the model is small beside the libraries, so fragmentation matters
        assert row["peak_bytes"] == pytest.approx(row["expected_bytes"], rel=0.15)
    assert "| torchvision:resnet18 | 44.7 | nuqsgd | 4 | master |" in page(STUDY, result)
