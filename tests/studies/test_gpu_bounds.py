"""`python -m studies.gpu_bounds`: bounds by registers and instructions, and the parsing of NVRTC's output."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.rows.coder import Coder
from psnode.codecs.rows.cuda.text import text_of
from psnode.codecs.rows.interpreter import Interpreted
from psnode.codecs.rows.usual import usual, usual_text
from psnode.errors import ConfigurationError
from studies import nvrtc
from studies.gpu_bounds import DEVICES, STUDY, Device, Options, measure, resident_warps, share_of_copy
from studies.harness import main
from tests.rows.forms import KEY, program

with_nvrtc = pytest.mark.skipif(not nvrtc.find(), reason="no NVRTC: pip install nvidia-cuda-nvrtc")
SMALL = """
extern "C" __global__ void __launch_bounds__(256) one(float *x) { x[threadIdx.x] = 2.0f * x[threadIdx.x]; }
extern "C" __global__ void __launch_bounds__(256) two(double *x) { x[threadIdx.x] = 1.0 / x[threadIdx.x]; }
"""


@pytest.mark.parametrize(
    ("registers", "warps"), [(16, 64), (32, 64), (33, 48), (40, 48), (64, 32), (72, 24), (128, 16), (255, 8)]
)
def test_warps_that_registers_leave_room_for(registers: int, warps: int) -> None:
    """Compare the number of warps with NVIDIA's occupancy calculator for blocks of 256 threads; registers are allotted in
    units of eight per thread.
    """
    assert resident_warps(registers) == warps
    assert warps * 32 * registers <= 65536


def test_a_kernel_takes_as_long_as_memory_or_instructions() -> None:
    device = Device("one", 1, 1e9, 1e9)  # 512e9 values a second with one instruction per row, 1e9 bytes a second
    assert share_of_copy(device, 4.0, [(4.0, 100)], 1) == 1.0
    assert share_of_copy(device, 4.0, [(4.0, 8 * 512)], 1) == pytest.approx(0.5)
    assert share_of_copy(device, 4.0, [(4.0, 8 * 512)], 4) == 1.0
    assert share_of_copy(device, 4.5, [(4.0, 1), (4.5, 1)], 1) == pytest.approx(4.5 / 8.5)  # preceded by a sweep


@with_nvrtc
def test_what_the_assembler_says_of_each_kernel() -> None:
    found = nvrtc.compile_text(SMALL, "sm_90").kernels()
    assert set(found) == {"one", "two"}
    assert all(8 <= kernel.registers <= 64 and kernel.spilled == 0 for kernel in found.values())
    assert 5 <= found["one"].instructions < 32
    assert found["one"].instructions < found["two"].instructions < 120  # the second kernel has its rare cases in a subroutine


@with_nvrtc
def test_registers_that_do_not_suffice_are_counted_as_spilled() -> None:
    text = 'extern "C" __global__ void __launch_bounds__(1024, 2) many(float *x) { float v[64];\n'
    text += "for (int i = 0; i < 64; i++) v[i] = x[64 * threadIdx.x + i];\n"
    text += "for (int r = 0; r < 64; r++) { float s = v[r]; for (int i = 0; i < 64; i++) v[i] = v[i] * s + v[(i + r) % 64]; }\n"
    text += "for (int i = 0; i < 64; i++) x[64 * threadIdx.x + i] = v[i]; }"
    [kernel] = nvrtc.compile_text(text, "sm_90").kernels().values()
    assert kernel.registers == 32 and kernel.spilled > 0


@with_nvrtc
def test_what_nvrtc_refuses_is_told_in_a_line() -> None:
    with pytest.raises(ConfigurationError, match=r"NVRTC refuses the kernels for sm_90: .*error") as caught:
        nvrtc.compile_text("no CUDA", "sm_90")
    assert "\n" not in str(caught.value)


@pytest.mark.long
@with_nvrtc
def test_the_page_has_every_architecture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(STUDY, ["--codec", "fp16", "--codec", "minmax", "--json", str(tmp_path / "bounds.json")]) == 0
    shown = capsys.readouterr().out
    rows = json.loads((tmp_path / "bounds.json").read_text())["rows"]
    assert [(row["spec"], row["architecture"]) for row in rows] == [(s, a) for a in DEVICES for s in ("fp16", "minmax")]
    for row in rows:
        assert row["encode_kernel"]["spilled"] == row["decode_kernel"]["spilled"] == 0
        assert row["decode"]["instructions"] < row["decode_add"]["instructions"]  # decode_add loads too
        assert row["encode"]["instructions"] < row["error"]["instructions"]
        assert all(0 < low <= high <= 1 for high, low in (row[action]["shares"] for action in ("encode", "decode")))
        assert shown.count(f"| {row['spec']} |") == len(DEVICES)
    fp16, minmax = rows[0], rows[1]
    assert fp16["encode"]["shares"][0] > minmax["encode"]["shares"][0]  # minmax first sweeps over all values


def test_a_codec_without_a_formula_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"svd: no formula"):
        measure(Options(codec=("fp16", "svd")))


def test_without_nvrtc_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "find", lambda: None)
    with pytest.raises(ConfigurationError, match="pip install nvidia-cuda-nvrtc"):
        measure(Options(codec=("fp16",)))


@pytest.mark.parametrize("spec", ["minmax", "nuqsgd", "onebit", "qsgd", "sign", "terngrad"])
def test_a_usual_row_is_coded_alike_without_the_branches_that_it_does_not_take(spec: str) -> None:
    codec = get_codec(spec)
    whole = program(codec)
    shortened = usual(whole)
    x = np.random.default_rng(3).standard_normal(10 * 512).astype(np.float32)
    body, error = np.zeros(whole.nbytes(x.size), np.uint8), np.empty_like(x)
    coder = Coder(shortened, Interpreted(shortened))
    assert coder.encode(x, np.array(KEY.words, np.uint64), body, error) == x.size
    payload = codec.encode(x, KEY)
    assert body.tobytes() == payload.body.tobytes()
    decoded = np.empty_like(x)
    coder.decode(body, decoded, np.float32(1), False)
    np.testing.assert_array_equal(decoded, codec.decode(payload))
    assert len(text_of(shortened)) <= len(text_of(whole))


def test_a_norm_has_no_branch_for_zero_and_for_large_ones_in_a_usual_row() -> None:
    whole = program(get_codec("qsgd"))
    assert text_of(whole).count("} else {") > text_of(usual(whole)).count("} else {")


def test_text_without_the_rare_cases_is_refused() -> None:
    with pytest.raises(AssertionError, match="have no"):
        usual_text("other kernels")
