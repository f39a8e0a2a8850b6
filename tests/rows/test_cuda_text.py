"""CUDA text without a GPU: run as C++ with a warp as a vector of 32 lanes, and compiled for GPUs by NVRTC.

This runs the actual text, with its indices, layouts, rounding and ties. Rows share no data, so there are no races to miss.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from psnode.codecs import get_codec
from psnode.codecs.device.cupy.row_kernels import standalone
from psnode.codecs.registry import load_codec
from psnode.codecs.rows.coder import Coder
from psnode.codecs.rows.cuda.text import measuring_text_of, text_of
from studies import nvrtc
from tests.rows.forms import EMPTY, FORMS, GOLDEN, KEY, check_all, check_golden, inputs, program, with_formula
from tests.rows.hosted import GXX, Hosted, build

EXAMPLE = f"{Path(__file__).parents[2] / 'examples' / 'row_codec.py'}:Levels"
with_gxx = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
with_nvrtc = pytest.mark.skipif(not nvrtc.find(), reason="no NVRTC: pip install nvidia-cuda-nvrtc")


def built(spec: str) -> Hosted:
    """Return the kernels of a spec."""
    return Hosted(build(text_of(program(get_codec(spec)))))


@with_gxx
@pytest.mark.parametrize("name", GOLDEN)
def test_the_golden_payload(name: str) -> None:
    check_golden(name, built(GOLDEN[name]))


@with_gxx
@pytest.mark.sweep
@pytest.mark.parametrize("spec", FORMS)
def test_all_contract_inputs(spec: str) -> None:
    """Check a fifth of the forms, or all with --long. test_cupy_kernels.py runs the same text through the launcher."""
    check_all(spec, built(spec))


@with_gxx
def test_a_value_that_is_not_finite_is_found_in_its_row() -> None:
    coder = Coder(program(get_codec("qsgd")), built("qsgd"))
    for index, row in ((0, 0), (600, 512), (1030, 1024)):
        x = np.ones(1100, np.float32)
        x[[index, 1099]] = np.nan, np.inf
        assert coder.encode(x, np.array(KEY.words, np.uint64), np.empty(coder.program.nbytes(1100), np.uint8), EMPTY) == row


@with_gxx
def test_a_codec_of_ones_own() -> None:
    """Compare a user's codec in CUDA text with its own kernels on a CPU, which are Numba's."""
    codec = get_codec(load_codec(EXAMPLE))
    coder = Coder(program(codec), Hosted(build(text_of(program(codec)))))
    for name, x in inputs(codec.number):
        error, expected = np.empty(x.size, np.float32), np.empty_like(x)
        payload = codec.encode(x, KEY, error=expected)
        body = np.empty(coder.program.nbytes(x.size), np.uint8)
        assert coder.encode(x.reshape(-1), np.array(KEY.words, np.uint64), body, error) == x.size
        assert body.tobytes() == payload.body[8:].tobytes(), name  # after the parameter
        np.testing.assert_array_equal(error.view(np.uint32), expected.reshape(-1).view(np.uint32), err_msg=name)
        decoded = np.empty(x.size, np.float32)
        coder.decode(body, decoded, np.float32(1), False)
        np.testing.assert_array_equal(decoded, codec.decode(payload).reshape(-1), err_msg=name)


@with_nvrtc
@pytest.mark.sweep
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("spec", sorted(with_formula()))
def test_gpus_run_it_from_registers_and_round_every_operation(spec: str, architecture: str) -> None:
    """Check that no value spills to memory, and that no product and sum are contracted to one operation with one rounding."""
    found = nvrtc.compile_text(standalone(text_of(program(get_codec(spec)))), architecture)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", found.log)
    entries = {"encode", "decode", "survey", "fold_sums"} | ({"sum_rows"} if program(get_codec(spec)).sums else set())
    entries |= {"norms", "place_blocks", "copy_blocks"} if spec == "tbq" else set()
    entries |= {"measure", "place_buckets"} if spec == "dithered" else set()
    assert set(re.findall(r"Compiling entry function '(\w+)'", found.log)) == entries
    assert {*spills} == {("0", "0")}
    assert re.findall(r"\bfma\.", found.ptx) == []
    assert re.findall(r"\b(?:mul|add)(?:\.rn)?\.f32", found.ptx)


@with_nvrtc
@pytest.mark.sweep
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("spec", ["minmax", "natural", "nuqsgd", "qsgd", "terngrad"])
def test_gpus_measure_for_contractive_forms_from_registers(spec: str, architecture: str) -> None:
    assert get_codec(spec).contractive() != get_codec(spec)
    found = nvrtc.compile_text(standalone(measuring_text_of(program(get_codec(spec)))), architecture)
    assert set(re.findall(r"Compiling entry function '(\w+)'", found.log)) == {"measure", "survey", "fold_sums"}
    assert set(re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", found.log)) == {("0", "0")}
    assert re.findall(r"\bfma\.", found.ptx) == []


@with_nvrtc
def test_the_search_would_find_a_contraction() -> None:
    found = nvrtc.compile_text(standalone(text_of(program(get_codec("qsgd")))), "sm_90", contracted=True)
    assert re.findall(r"\bfma\.", found.ptx)
