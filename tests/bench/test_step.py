"""`psnode bench step` drives the steps of a worker: the frames have the scheme's bytes, wherever they are coded, and copies
between device and host are counted.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from psnode.bench.step import Workload, markdown, run
from psnode.bench.yardsticks.device_transfers import Crossed, counted
from psnode.cli import app
from psnode.errors import ConfigurationError, TransportError
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.hosted import GXX

SMALL = Workload("FC", 4, (1, 8, 8), 10)
MATRICES, OFFSETS = 64 * 800 + 800 * 500 + 500 * 10, 800 + 500 + 10  # values
FRAME = 256  # bytes of a frame besides its payloads, at most
ONCE = {"rounds": 1, "steps": 1, "warmup": 1}


def rows_of(schemes: list[str], **options: Any) -> dict[str, dict[str, Any]]:
    found = run(schemes, SMALL, CPU, **{"coded_there": False, **ONCE, **options})
    return {row["scheme"]: row for row in found["rows"]}


def test_the_command_measures_schemes_beside_the_passes_alone(tmp_path: Path) -> None:
    flags = ["--network", "FC", "--shape", "1,8,8", "--batch-size", "4", "--rounds", "3", "--steps", "2", "--warmup", "1"]
    chosen = ["--scheme", "dense", "--scheme", "fp16 --feedback ef", "--scheme", "topk:ratio=0.005"]
    file = tmp_path / "step.json"
    done = CliRunner().invoke(app, ["bench", "step", *flags, *chosen, "--json", str(file)], standalone_mode=False)
    assert done.exception is None and done.return_value == 0
    result = json.loads(file.read_text())
    assert (result["network"], result["batch"], result["shape"], result["device"]) == ("FC", 4, [1, 8, 8], "cpu")
    none, dense, fp16, topk = result["rows"]
    assert [row["scheme"] for row in result["rows"]] == ["none", *chosen[1::2]]
    for row in result["rows"]:
        assert len(row["rounds"]) == 3 and min(row["rounds"]) > 0
        ratios = [one / other for one, other in zip(row["rounds"], none["rounds"], strict=True)]
        assert row["ratio"] == pytest.approx(statistics.median(ratios))
        assert min(row["rounds"]) <= row["ms"] <= max(row["rounds"])
        assert (row["down"], row["up"], row["on_host"]) == (0, 0, [])
        assert f"| {row['scheme']} | {row['ms']:.1f} | " in done.stdout
    assert (none["sent"], none["received"], none["gradients"], none["changes"]) == (0, 0, "", "")
    assert 0 <= dense["sent"] - 4 * (MATRICES + OFFSETS) < FRAME and dense["received"] == dense["sent"]
    assert 0 <= fp16["sent"] - (2 * MATRICES + 4 * OFFSETS) < FRAME
    assert topk["sent"] < 4 * OFFSETS + 8 * 0.005 * MATRICES + FRAME
    assert [(row["gradients"], row["changes"]) for row in (dense, fp16, topk)] == [("uncoded",) * 2, ("host",) * 2, ("host",) * 2]


HOSTS = "nuqsgd:bucket=1024 --downlink qsgd:bucket=1024"  # codecs that exist only for processors


@pytest.fixture(autouse=True)
def _nothing_compiled_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore functions that other tests of this process have compiled or scripted; a process that only runs the benchmark
    has no such functions.
    """
    monkeypatch.setattr("psnode.worker.inspection.unwatchable", lambda model: "")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    if not GXX:
        pytest.skip("no g++ to build CUDA text as C++")
    return install(monkeypatch, tmp_path)


@pytest.mark.long
def test_a_row_says_what_a_device_codes_and_why_the_host_codes_the_rest(cupy: FakeCupy) -> None:
    found = rows_of(["fp16", "qsgd:bucket=512 --downlink topk", HOSTS, "dense"], coded_there=True)
    places = {name: (row["gradients"], row["changes"]) for name, row in found.items()}
    assert places.pop("none") == ("", "") and cupy.launched
    assert list(places.values()) == [("device", "device"), ("device", "device"), ("host", "host"), ("uncoded", "uncoded")]
    assert found["fp16"]["on_host"] == found["dense"]["on_host"] == []
    assert [line.partition(" is coded on the host: ")[2] for line in found[HOSTS]["on_host"]] == [
        "it has no kernels for a device"
    ] * 2


def test_frames_are_as_long_wherever_they_are_coded(cupy: FakeCupy) -> None:
    there, here = rows_of(["fp16", "qsgd"], coded_there=True), rows_of(["fp16", "qsgd"])
    for name in ("fp16", "qsgd"):
        assert (there[name]["sent"], there[name]["received"]) == (here[name]["sent"], here[name]["received"])


def test_copies_are_counted_by_direction() -> None:
    """Check the sums over events as torch's profiler writes them, in which copies are of the kind gpu_memcpy."""
    copies = [
        ("Memcpy DtoH (Device -> Pinned)", 1000), ("Memcpy HtoD (Pinned -> Device)", 20), ("Memcpy DtoH (Device -> Pageable)", 4),
        ("Memcpy DtoD (Device -> Device)", 5000),
    ]  # fmt: skip
    events: list[dict[str, Any]] = [
        {"ph": "X", "cat": "gpu_memcpy", "name": name, "ts": 1, "dur": 1, "args": {"bytes": nbytes}} for name, nbytes in copies
    ]
    others = [{"ph": "X", "cat": "kernel", "name": "encode", "args": {"bytes": 7}}, {"ph": "M", "name": "process_name"}]
    assert counted({"traceEvents": [*events, *others]}) == Crossed(1004, 20)
    assert counted({"traceEvents": others}) is None


def test_the_table_has_the_share_of_the_payload_that_comes_to_the_host() -> None:
    row = {"scheme": "fp16", "ms": 12.0, "rounds": [11.0, 13.0], "ratio": 1.2, "sent": 2_000_000, "received": 1_000_000}
    row |= {"down": 2_020_000, "up": 500_000, "gradients": "device", "changes": "device 50 %, host", "on_host": ["a is, because"]}
    told = {**row, "scheme": "qsgd", "down": None, "up": None}
    head = {"date": "today", "cpu": "x", "cores": 1, "threads": 1, "device": "d", "torch": "2", "rounds": 2, "steps": 3}
    text = markdown({**head, **SMALL._asdict(), "rows": [row, told]})
    assert "| fp16 | 12.0 | 11.0 to 13.0 | 1.200 | 2.000 | 2.020 | 1.010 | 1.000 | 0.500 | device | device 50 %, host |" in text
    assert "| 2.000 | not told |  | 1.000 | not told | device |" in text
    assert text.endswith("\n\na is, because\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "tpu"], "name cpu, cuda or cuda:1"),
        (["--device", "cuda:x"], "name cpu, cuda or cuda:1"),
        (["--device", "cuda:9"], r"sees \d+ CUDA devices \(psnode doctor\)"),
        (["--shape", "3,32"], "three numbers"),
        (["--scheme", "dense --batch-size 3"], "--batch-size is the same for all"),
        (["--scheme", "dense --consistency asp"], "leave out --consistency"),
        (["--scheme", "nothing"], "nothing"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(flags: list[str], message: str) -> None:
    small = ["--network", "FC", "--shape", "1,8,8", "--batch-size", "4"]
    with pytest.raises(ConfigurationError, match=message) as caught:
        CliRunner().invoke(app, ["bench", "step", *small, *flags], catch_exceptions=False, standalone_mode=False)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_there_is_nothing_to_measure() -> None:
    with pytest.raises(ConfigurationError, match=r"--device 0: this torch sees 0 CUDA devices \(psnode doctor\)"):
        CliRunner().invoke(app, ["bench", "step", "--device", "cuda"], catch_exceptions=False, standalone_mode=False)


def test_a_gradient_that_is_not_finite_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from psnode.exchange.gradients import Gradients

    whole = Gradients.collect

    def collect(gradients: Gradients, name: str) -> None:
        gradients._parameters[name].grad.fill_(torch.inf)  # type: ignore[union-attr]
        whole(gradients, name)

    monkeypatch.setattr(Gradients, "collect", collect)
    with pytest.raises(TransportError, match="sent no gradient"):
        rows_of(["fp16 --feedback ef"])


def test_a_payload_and_little_else_comes_from_the_device(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the tensors which torch copies to the host in one step of a network have the payload's bytes, and at most 2
    % more.
    """
    from psnode.codecs.device.staging_buffer import StagingBuffer

    down = 0
    rooms, read, whole = StagingBuffer.down, torch.Tensor.cpu, torch.Tensor.__int__

    def counts(method: Any) -> Any:
        def counted(*given: Any) -> Any:
            nonlocal down
            down += given[-1].nbytes
            return method(*given)

        return counted

    def cross(action: Any, device: torch.device) -> Crossed:
        nonlocal down
        down = 0
        action()
        return Crossed(down, 0)

    monkeypatch.setattr(StagingBuffer, "down", counts(rooms))
    monkeypatch.setattr(torch.Tensor, "cpu", counts(read))
    monkeypatch.setattr(torch.Tensor, "__int__", counts(whole))
    monkeypatch.setattr("psnode.bench.step.crossed", cross)
    for name, row in rows_of(["fp16", "qsgd", "fp16 --feedback ef"], coded_there=True).items():
        payload = row["sent"] - 4 * OFFSETS  # biases are sent uncoded, and are not counted here
        assert (row["down"] > 0.9 * payload and row["down"] <= 1.02 * payload) or name == "none", row


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or importlib.util.find_spec("cupy") is None, reason="no CUDA device or no cupy")
def test_a_payload_and_little_else_comes_from_a_gpu() -> None:
    found = run(["fp16", "qsgd", "fp16 --feedback ef"], SMALL, torch.device("cuda", 0), coded_there=True, **ONCE)
    for row in found["rows"][1:]:
        assert (row["gradients"], row["changes"]) == ("device", "device"), row
        assert row["down"] is None or 0.98 * row["sent"] <= row["down"] <= 1.02 * row["sent"], row
