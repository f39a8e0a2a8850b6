"""Records: whole lines, totals that add up, and files that are replaced atomically."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from psnode.errors import CheckpointError
from psnode.records.metrics import (
    METRICS,
    RunLog,
    Seconds,
    StepRecord,
    Summary,
    Totals,
    compression_ratio,
    cut_after,
    peak_memory,
    read_records,
    totals,
    write_atomically,
)

RUNS = Path(__file__).resolve().parents[1] / "old_runs"


def record(step: int, up: int = 100, down: int = 200) -> StepRecord:
    return StepRecord(
        step=step,
        epoch=step / 10,
        loss=1.0 / step,
        lr=0.1,
        workers=2,
        contributing=2,
        uplink_bytes=up,
        downlink_bytes=down,
        dropped=0,
        samples_per_second=10.0,
        seconds=Seconds(0.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1),
        relative_error=None,
        metrics={"top1": 0.5},
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        for step in (1, 2, 3):
            log.write(record(step))
            assert [entry["step"] for entry in read_records(tmp_path / METRICS)] == list(range(1, step + 1))


def test_records_after_a_step_are_cut(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        for step in range(1, 8):
            log.write(record(step))
    cut_after(tmp_path / METRICS, 4)
    assert [entry["step"] for entry in read_records(tmp_path / METRICS)] == [1, 2, 3, 4]


def test_a_torn_last_line_is_left_out_and_cut(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        log.write(record(1))
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"step": 2, "ep')
    assert [entry["step"] for entry in read_records(tmp_path / METRICS)] == [1]
    cut_after(tmp_path / METRICS, 100)
    assert (tmp_path / METRICS).read_bytes().endswith(b"}\n")


def test_cutting_where_nothing_was_written_is_nothing(tmp_path: Path) -> None:
    cut_after(tmp_path / METRICS, 3)
    assert not (tmp_path / METRICS).exists()


def test_totals_are_those_up_to_a_step_and_change_nothing(tmp_path: Path) -> None:
    with RunLog(tmp_path) as log:
        for step in range(1, 8):
            log.write(record(step))
    before = (tmp_path / METRICS).read_bytes()
    assert totals(tmp_path / METRICS, 4) == Totals(steps=4, worker_steps=8, uplink_bytes=400, downlink_bytes=800, seconds=2.0)
    assert totals(tmp_path / METRICS, 100) == Totals(steps=7, worker_steps=14, uplink_bytes=700, downlink_bytes=1400, seconds=3.5)
    assert totals(tmp_path / "nothing", 4) == Totals()
    assert (tmp_path / METRICS).read_bytes() == before


def test_records_of_an_earlier_version_have_totals_without_control_messages(tmp_path: Path) -> None:
    assert all("uplink_control_bytes" not in old for old in read_records(RUNS / "qsgd" / METRICS))
    (tmp_path / METRICS).write_bytes((RUNS / "qsgd" / METRICS).read_bytes())
    with RunLog(tmp_path) as log:
        log.write(replace(record(8), uplink_control_bytes=7, downlink_control_bytes=9))
    found = totals(tmp_path / METRICS, 8)
    assert (found.uplink_bytes, found.downlink_bytes) == (
        70_302 + 100,
        111_632 + 200,
    )  # the bytes of its summary.json, and 100 or 200 more
    assert (found.uplink_control_bytes, found.downlink_control_bytes) == (7, 9)


@pytest.mark.parametrize("line", [b"garbage", b"\xff\xfe", b"[1]", b"{}", b'{"step": "1"}', b""])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: bytes) -> None:
    with RunLog(tmp_path) as log:
        log.write(record(1))
    with (tmp_path / METRICS).open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(CheckpointError, match=r"line 2 of .*metrics\.jsonl"):
        list(read_records(tmp_path / METRICS))


def test_a_record_without_its_figures_has_no_totals(tmp_path: Path) -> None:
    (tmp_path / METRICS).write_bytes(b'{"step": 3}\n')
    with pytest.raises(CheckpointError, match=r"step 3 in .*metrics\.jsonl"):
        totals(tmp_path / METRICS, 5)


def test_the_ratio_is_dense_traffic_over_traffic() -> None:
    assert compression_ratio(1000, 4 * 10, 32_000) == 8 * 4 * 1000 * 10 / 32_000
    assert compression_ratio(1000, 0, 0) is None


def test_a_summary_has_the_documented_fields(tmp_path: Path) -> None:
    Summary(3, 1.0, 0.5, 10, 20, 2.0, "ab", "completed", 0, 1000, None).write(tmp_path)
    expected = "steps seconds final_loss uplink_bytes downlink_bytes compression_ratio model_hash stop_reason exit_code"
    expected += " coordinates peak_memory_bytes worker_peak_memory_bytes uplink_control_bytes downlink_control_bytes prediction"
    expected += " link_bytes"
    assert set(json.loads((tmp_path / "summary.json").read_bytes())) == set(expected.split())


@pytest.mark.skipif(peak_memory() is None, reason="needs Linux's /proc")
def test_the_peak_of_memory_is_this_process_s_own_and_stays_when_the_memory_is_gone() -> None:
    code = "import numpy; from psnode.records.metrics import peak_memory as p; print(p()); numpy.ones(25_000_000); print(p())"
    parent = (
        "import numpy, subprocess, sys; own = numpy.ones(100_000_000); subprocess.check_call([sys.executable, *sys.argv[1:]])"
    )
    command = [sys.executable, "-c", parent, "-c", code]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    before, after = map(int, told)
    assert before < 400e6  # half of its parent's peak
    assert 195e6 <= after - before < 220e6  # the earlier peak may include memory that has been released since


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_atomically(tmp_path / "f", b"old")
    write_atomically(tmp_path / "f", b"new contents")
    assert (tmp_path / "f").read_bytes() == b"new contents"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
