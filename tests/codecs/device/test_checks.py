"""The check of codecs on a device. A stand-in for the device runs the text of the kernels, which can be changed to compute
something else.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.codecs import available, get_codec
from psnode.codecs.device.checks import check, check_all, summary
from psnode.codecs.device.differences import inputs
from psnode.codecs.device.row_coder import DeviceCoder
from psnode.codecs.registry import load_codec
from psnode.errors import ConfigurationError
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.forms import KEY, with_formula
from tests.rows.hosted import GXX

pytestmark = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
WITHOUT_FORMULA = {"graddrop", "randk", "svd", "threshold", "topk"}  # coded in rows, but without a formula
EXAMPLE = f"{Path(__file__).parents[3] / 'examples' / 'row_codec.py'}:Levels"


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    return install(monkeypatch, tmp_path)


@pytest.mark.long
@pytest.mark.usefixtures("cupy")
def test_every_codec_with_a_formula_is_trusted_on_a_device_that_gives_its_bytes() -> None:
    verdicts = check_all(map(get_codec, available()), CPU)
    assert {get_codec(verdict.spec).id for verdict in verdicts} == with_formula() | WITHOUT_FORMULA
    assert [verdict.line for verdict in verdicts if verdict.on_device is None] == []


@pytest.mark.usefixtures("cupy")
def test_a_codec_of_ones_own_is_trusted() -> None:
    verdict = check(get_codec(load_codec(EXAMPLE)), CPU)
    assert verdict is not None and verdict.on_device is not None, verdict


def test_trust_is_remembered_for_the_same_driver_and_may_be_asked_for_anew(cupy: FakeCupy) -> None:
    codec = get_codec("bf16")
    first, again = check(codec, CPU), check(codec, CPU)
    assert first is not None and again is not None
    assert (first.is_known, again.is_known) == (False, True)
    launched = len(cupy.launched)
    assert check(codec, CPU, anew=True).is_known is False and len(cupy.launched) > launched  # type: ignore[union-attr]
    cupy.driver += 1
    assert check(codec, CPU).is_known is False  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("right", "wrong", "what"),
    [
        ("32767u", "32768u", "another payload"),  # rounds half up
        ("v[k] - ", "v[k] + ", "another residual"),
        ("weight * ", "weight + ", "other sums"),
        ("STORE_F32(error", "(void)(error", "another residual"),
    ],
)
def test_a_device_that_computes_something_else_is_not_trusted(cupy: FakeCupy, right: str, wrong: str, what: str) -> None:
    def edit(text: str) -> str:
        assert right in text
        return text.replace(right, wrong)

    cupy.edit = edit
    for _ in range(2):  # the result is not cached
        verdict = check(get_codec("bf16"), CPU)
        assert verdict is not None and verdict.on_device is None
        assert verdict.line == f"bf16 is coded on the host: the device makes {what} of N(0,1)"


def test_a_device_that_fails_is_not_trusted_and_says_why_in_a_line(cupy: FakeCupy) -> None:
    def fails(text: str) -> str:
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS:\n an illegal memory access")

    cupy.edit = fails
    verdict = check(get_codec("fp16"), CPU)
    assert verdict is not None and verdict.on_device is None
    assert verdict.line.startswith("fp16 is coded on the host: its kernels failed: ") and "ILLEGAL_ADDRESS" in verdict.line
    assert "\n" not in verdict.line


@pytest.mark.usefixtures("cupy")
def test_a_codec_without_a_formula_has_no_verdict() -> None:
    assert check(get_codec("polar"), CPU) is None
    assert check(get_codec("qsgd:bucket=1024"), CPU) is None


def test_without_cupy_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ConfigurationError, match="CuPy cannot be imported"):
        check(get_codec("qsgd"), CPU)


def test_the_inputs_have_what_goes_wrong() -> None:
    found = dict(inputs())
    assert np.mean(found["62 % zeros"] == 0) == pytest.approx(0.62, abs=0.01)
    denormals = found["denormals"][found["denormals"] != 0]
    assert denormals.size > 1000 and np.abs(denormals).max() < np.finfo(np.float32).tiny
    assert all(x.size % 512 for x in found.values())


@pytest.mark.sweep
@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("size", [1, 511, 512, 3 * 512 + 5, 2560, 3000])
@pytest.mark.parametrize("spec", ["qsgd", "minmax", "natural", "onebit", "scaledsign", "sign", "terngrad"])
def test_an_array_that_stays_on_the_device_is_coded_as_on_the_host(spec: str, size: int) -> None:
    codec = get_codec(spec)
    verdict = check(codec, CPU)
    assert verdict is not None and verdict.on_device is not None
    coder = verdict.on_device.encoder((size,))
    assert isinstance(coder, DeviceCoder)
    x = np.random.default_rng(2).standard_normal(size).astype(np.float32) + 3  # all values are above 0, unlike the padding
    on_device = torch.zeros(coder.padded)
    on_device[:size] = torch.tensor(x)
    coder.encode(on_device, np.array(KEY.words, np.uint64), on_device)
    payload = codec.encode(x, KEY, error=x)
    body = np.full(payload.body.size, 0xAA, np.uint8)
    assert coder.take(body) == body.size and body.tobytes() == payload.body.tobytes()
    np.testing.assert_array_equal(on_device[:size].numpy().view(np.uint32), x.view(np.uint32))
    out = torch.zeros(coder.padded)
    coder.decode(out)
    np.testing.assert_array_equal(out[:size].numpy(), codec.decode(payload))
    assert coder.is_finite


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_where_there_is_no_device_a_summary_is_empty() -> None:
    assert summary() == {"good": [], "problems": []}
