"""`python -m studies.updates`: both timed steps are the same step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from studies import updates
from studies.harness import main


@pytest.mark.parametrize("name", updates.KINDS)
def test_both_take_the_same_step(name: str) -> None:
    """Compare the weights after one step of each kind, and for plain SGD also with 1 - .001 (.5 + .01)."""
    ours, theirs = updates.Ours(name, 5), updates.Theirs(name, 5)
    ours.take()
    theirs.take()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-6, atol=0)
    if name == "sgd":
        torch.testing.assert_close(ours.weight.detach(), torch.full((5,), 1 - 0.001 * 0.51))


def test_the_command_prints_a_row_for_each_optimizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "updates.json"
    command = ["--optimizer", "sgd", "--optimizer", "adamw", "--size", "1000", "--repeats", "2"]
    assert main(updates.STUDY, [*command, "--json", str(path)]) == 0
    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows == ["optimizer", "sgd", "adamw"]
    result = json.loads(path.read_text())
    for row in result["rows"]:
        assert row["floor"] == pytest.approx(result["copy_gbps"] / row["gbps"])
