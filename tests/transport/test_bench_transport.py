"""`psnode bench transport` at small scale: its report follows from its measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psnode.bench.ingest_rate import main, summarise, targets
from psnode.errors import ConfigurationError


def test_rates_shares_and_floor_follow_from_the_seconds() -> None:
    seconds = {
        "raw": [0.5, 1.0, 2.0],
        "ingest": [2.0, 2.0, 2.0],
        "checksum": [0.25] * 3,
        "accumulate": [0.75] * 3,
        "ping": [1e-4] * 3,
        "ping_idle": [2e-4] * 3,
    }
    found = summarise(seconds, 0.02, 1000)
    assert found["raw"]["median"] == 1000.0
    assert found["floor"] == pytest.approx(1000 / (1.0 + 0.25 + 0.75))
    assert found["share_of_raw"] == pytest.approx(0.5)
    assert found["share_of_floor"] == pytest.approx(1.0)
    assert targets({"links": {"tcp": found}}) == {
        "tcp: >= 80 % of raw or >= 95 % of the floor": True,
        "idle: <= 3 % of a core": True,
    }
    slow = summarise({**seconds, "ingest": [2.2] * 3}, 0.04, 1000)
    assert not any(targets({"links": {"tcp": slow, "shared memory": slow}}).values())


def test_a_small_run_measures_both_links_and_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mpi4py")
    file = tmp_path / "deep" / "result.json"
    assert main(file, groups=3, group_bytes=40_000, rounds=2, idle_seconds=0.2) == 0
    result = json.loads(file.read_text())
    assert result["bytes"] == 120_000
    assert set(result["links"]) == {"shared memory", "tcp"}
    for link in result["links"].values():
        assert all(link[name]["median"] > 0 for name in ("raw", "ingest", "checksum", "accumulate", "round_trip"))
        assert link["share_of_floor"] == pytest.approx(link["ingest"]["median"] / link["floor"])
    assert {"date", "cpu", "cores"} <= set(result)
    assert "ingest / floor" in capsys.readouterr().out


def test_groups_that_hold_no_whole_floats_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="group_bytes is 6"):
        main(group_bytes=6)
