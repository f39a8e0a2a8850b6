"""`psnode bench gpu` on a stand-in for a device, whose clock advances by one millisecond per event."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from psnode.bench.gpu import ACTIONS, markdown, run
from psnode.bench.gpu_peers import RATIO, peers
from psnode.cli import app
from psnode.errors import ConfigurationError
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.forms import with_formula
from tests.rows.hosted import GXX

SIZE = 16 * 2560
SELECTIONS = {"graddrop", "randk", "threshold", "topk"}


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    if not GXX:
        pytest.skip("no g++ to build CUDA text as C++")
    return install(monkeypatch, tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("cupy")
def test_the_report_has_every_codec_with_a_formula_and_shares_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psnode.bench.gpu.cuda", lambda number: CPU)
    flags = ["bench", "gpu", "--size", str(SIZE + 5), "--repeats", "3", "--json", str(tmp_path / "gpu.json")]
    done = CliRunner().invoke(app, flags, catch_exceptions=False, standalone_mode=False)
    assert done.return_value == 0
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert {row["spec"].partition(":")[0] for row in result["rows"]} == with_formula() | SELECTIONS
    assert (result["device"], result["capability"], result["driver"]) == ("A fake device", "90", "13000")
    call = 0.001 / 5  # seconds: five calls between two events
    assert result["copy"] == pytest.approx(2 * 4 * SIZE / call)
    for row in result["rows"]:
        assert row["equal"] is True
        selects = row["spec"].partition(":")[0] in SELECTIONS
        assert [action for action in ACTIONS if action in row] == [a for a in ACTIONS if not (selects and a == "decode")]
        assert row["decode_add"]["speed"] > 0
        if not selects:  # selections also record events while they run
            for action in ACTIONS:
                assert row[action]["speed"] == pytest.approx(4 * SIZE / call)
            assert row["encode"]["share"] == pytest.approx((4 * SIZE + row["payload"]) / (8 * SIZE))
            assert row["error"]["share"] == pytest.approx((8 * SIZE + row["payload"]) / (8 * SIZE))
        assert f"| {row['spec']} | yes |" in done.stdout
    assert [row["payload"] for row in result["rows"] if row["spec"] == "fp16"] == [2 * SIZE]
    entries = int(SIZE * RATIO)
    expected = [2 * SIZE, SIZE, SIZE + 4, SIZE + 4, (4 + 8) * entries, SIZE // 8]
    assert [row["payload"] for row in result["peers"]] == expected
    for row in result["peers"]:
        assert row["decode"]["share"] == pytest.approx((4 * SIZE + row["payload"]) / (8 * SIZE))
        assert f"| {row['name']} | {row['payload']:,} | " in done.stdout


@pytest.mark.usefixtures("cupy")
def test_codecs_are_measured_on_a_device_by_the_same_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psnode.bench.gpu.cuda", lambda number: CPU)
    flags = [
        "bench",
        "codecs",
        "--device",
        "cuda:0",
        "--codec",
        "bf16",
        "--size",
        str(SIZE),
        "--json",
        str(tmp_path / "gpu.json"),
    ]
    done = CliRunner().invoke(app, flags, catch_exceptions=False, standalone_mode=False)
    assert done.return_value == 0 and "| bf16 | yes |" in done.stdout
    [row] = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    assert row["spec"] == "bf16" and row["decode"]["share"] == pytest.approx((4 * SIZE + row["payload"]) / (8 * SIZE))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--device", "tpu"], "name cuda or cuda:1"),
        (["--device", "cuda:x"], "name cuda or cuda:1"),
        (["--device", "cuda:"], "name cuda or cuda:1"),
        (["--device", "cuda", "--seconds", "1"], "leave out --seconds"),
        (["--device", "cuda:9"], r"sees \d+ CUDA devices"),
    ],
)
def test_a_device_is_named_and_takes_no_options_of_the_processors(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        CliRunner().invoke(app, ["bench", "codecs", *flags], catch_exceptions=False, standalone_mode=False)
    assert "\n" not in str(caught.value)


def test_a_codec_that_the_device_codes_otherwise_is_named_and_not_measured(cupy: FakeCupy) -> None:
    cupy.edit = lambda text: text.replace("v[k] - ", "v[k] + ")
    result = run(["fp16"], SIZE, 3, CPU)
    assert result["rows"] == [{"spec": "fp16", "equal": False, "problem": "the device makes another residual of N(0,1)"}]
    assert "| fp16 | no |" in markdown(result) and "fp16: the device makes another residual" in markdown(result)


@pytest.mark.usefixtures("cupy")
def test_a_codec_without_a_formula_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"polar:.*no kernels"):
        run(["fp16", "polar"], SIZE, 3, CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_there_is_nothing_to_measure() -> None:
    with pytest.raises(ConfigurationError, match=r"sees 0 CUDA devices \(psnode doctor\)"):
        CliRunner().invoke(app, ["bench", "gpu"], catch_exceptions=False, standalone_mode=False)


def test_the_doctor_says_which_codecs_give_the_processors_bytes() -> None:
    from psnode.cli.doctor import _device_kernels

    good = _device_kernels({"good": ["bf16", "fp16"], "problems": []})
    assert (good.state, good.detail) == ("ok", "the processor's bytes: bf16, fp16")
    bad = _device_kernels({"good": ["bf16"], "problems": ["fp16 is coded on the host: because"]})
    assert bad.state == "optional" and bad.detail == "fp16 is coded on the host: because" and bad.remedy
    absent = _device_kernels({"error": "CuPy cannot be imported"})
    assert absent.state == "optional" and "pip install '.[gpu]'" in absent.remedy


@pytest.mark.usefixtures("cupy")
def test_other_programs_codecs_do_what_their_papers_say() -> None:
    """Compare fp16, signs and top-k with NumPy. Check that qsgd and terngrad draw values on their grid, with the right mean
    (Hoeffding's bound at 1e-6).
    """
    x = np.random.default_rng(1).standard_normal(4000).astype(np.float32)
    there, found = torch.tensor(x), {peer.name.partition(",")[0]: peer for peer in peers()}
    decoded = {name: peer.decode(peer.encode(there), x.size).numpy() for name, peer in found.items()}
    np.testing.assert_array_equal(decoded["fp16"], x.astype(np.float16).astype(np.float32))
    for name in ("signsgd", "signs"):
        np.testing.assert_array_equal(decoded[name], np.where(x >= 0, 1, -1))
    kept = np.argsort(np.abs(x))[-int(RATIO * x.size) :]
    np.testing.assert_array_equal(np.flatnonzero(decoded["topk"]), np.sort(kept))
    np.testing.assert_array_equal(decoded["topk"][kept], x[kept])
    clipped = np.clip(x, -2.5 * x.std(), 2.5 * x.std())
    for name, target, step in (("qsgd", x, np.linalg.norm(x) / 64), ("terngrad", clipped, np.abs(clipped).max())):
        peer = found[name]
        draws = np.stack([peer.decode(peer.encode(there), x.size).numpy() for _ in range(400)]).astype(np.float64)
        np.testing.assert_allclose(draws / step, np.round(draws / step), atol=1e-4)
        assert np.abs(draws - target).max() <= step * 1.0001
        assert np.abs(draws.mean(0) - target).max() < step * np.sqrt(np.log(2 * x.size / 1e-6) / (2 * 400))
