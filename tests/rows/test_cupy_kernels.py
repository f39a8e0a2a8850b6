"""Kernels on a device through CuPy, on a stand-in that runs the kernels' text."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from psnode.codecs import get_codec
from psnode.codecs.device.cupy.row_kernels import OPTIONS, DeviceIdentity, Kernels, import_cupy, standalone
from psnode.codecs.device.row_functions import RowFunctions
from psnode.codecs.rows.cuda.text import text_of
from psnode.errors import ConfigurationError
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.forms import FORMS, check_all, program
from tests.rows.hosted import GXX

pytestmark = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    return install(monkeypatch, tmp_path)


@pytest.mark.sweep
@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("spec", FORMS)
def test_all_contract_inputs_through_the_launcher(spec: str) -> None:
    check_all(spec, RowFunctions(Kernels(text_of(program(get_codec(spec))), 0), CPU))


def test_kernels_are_compiled_once_for_a_device_and_a_driver(cupy: FakeCupy, tmp_path: Path) -> None:
    text = text_of(program(get_codec("bf16")))
    Kernels(text, 0)
    Kernels(text, 0)
    assert [options for _, options in cupy.compiled] == [OPTIONS]
    cupy.driver += 10
    Kernels(text, 0)
    assert len(cupy.compiled) == 2
    assert len(list(tmp_path.glob("*.cubin"))) == 2 and not list(tmp_path.glob("*.tmp"))


def test_a_file_that_no_driver_takes_is_compiled_anew(cupy: FakeCupy) -> None:
    text = text_of(program(get_codec("bf16")))
    path = DeviceIdentity.of(0).file(standalone(text), ".cubin")
    path.write_bytes(b"cut off")
    Kernels(text, 0)
    assert len(cupy.compiled) == 1 and path.stat().st_size > 1000


def test_what_is_compiled_includes_nothing_from_files_but_on_a_processor() -> None:
    """Check that the text includes no file but host.h, which only a processor needs. A file of kernels is identified by its
    text: changes of an included header would not be noticed.
    """
    text = standalone(text_of(program(get_codec("qsgd"))))
    assert [line for line in text.splitlines() if line.startswith("#include")] == ['#include "host.h"']


def test_denormals_are_not_flushed_by_an_option_of_cupys() -> None:
    """Check the options with which kernels are compiled. They reach RawModule compiled, since RawModule adds -ftz=true after
    the caller's options.
    """
    assert "--ftz=false" in OPTIONS and "--fmad=false" in OPTIONS
    assert {"--prec-div=true", "--prec-sqrt=true"} <= set(OPTIONS)


def test_without_cupy_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ConfigurationError, match=r"CuPy cannot be imported .*: pip install '\.\[gpu\]' in a clone") as caught:
        import_cupy()
    assert "\n" not in str(caught.value)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available() or importlib.util.find_spec("cupy") is None, reason="no CUDA device or no cupy")
@pytest.mark.parametrize("spec", FORMS)
def test_all_contract_inputs_on_a_gpu(spec: str) -> None:
    device = torch.device("cuda", 0)
    check_all(spec, RowFunctions(Kernels(text_of(program(get_codec(spec))), 0), device))
