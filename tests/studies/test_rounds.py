"""The simulated jobs of `python -m studies.rounds`: the rules make the expected number of versions from the frames."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.harness import main
from studies.rounds import STUDY, Options, measure


@pytest.mark.parametrize("rule", ["bsp", "kofn", "ssp", "asp"])
def test_a_played_job_goes_on_under_every_rule(rule: str) -> None:
    """Check the number of versions: with five workers and two groups, at most ten frames are computed on a version, and
    under bsp exactly ten.
    """
    [row] = measure(Options(workers=(5,), consistency=(rule,), groups=2, frames=400, repeats=2)).rows
    assert row["versions"] == 40 if rule == "bsp" else row["versions"] >= 40
    assert 0 < row["offer"]["low"] <= row["offer"]["median"] <= row["offer"]["high"]


def test_the_command_prints_a_row_for_each_rule_and_number_of_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rounds.json"
    command = ["-n", "2", "-n", "3", "--consistency", "bsp", "--consistency", "asp", "--frames", "60"]
    assert main(STUDY, [*command, "--repeats", "1", "--json", str(path)]) == 0
    rows = [line.split("|")[1:3] for line in capsys.readouterr().out.splitlines()[4:]]
    assert [(rule.strip(), int(count)) for rule, count in rows] == [("bsp", 2), ("bsp", 3), ("asp", 2), ("asp", 3)]
    saved = json.loads(path.read_text())
    assert [(row["rule"], row["workers"]) for row in saved["rows"]] == [("bsp", 2), ("bsp", 3), ("asp", 2), ("asp", 3)]
    assert saved["cpu"] and saved["frames"] == 60
