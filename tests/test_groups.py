"""Tests that start jobs of several processes run one at a time within each of two groups."""

from __future__ import annotations

import os

import pytest


@pytest.mark.serial
def test_a_serial_test_is_in_the_group_of_serial_tests(request: pytest.FixtureRequest) -> None:
    """Check the group of a serial test: pytest 9.2 silently lost pytest-xdist's groups, so that jobs ran two at a time."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("one process runs all tests")
    assert request.node.nodeid.endswith("@serial")
    of_mpi = [item.nodeid for item in request.session.items if item.path.parent.name == "mpi"]
    assert [each for each in of_mpi if not each.endswith("@jobs")] == []
