"""Contractive forms on a stand-in for a device: bytes, errors and checks compared with the host, also for sums that are hard
to compute.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.codecs import Codec, get_codec
from psnode.codecs.chain import Chain
from psnode.codecs.contractive import Contractive
from psnode.codecs.device.checks import check, summary
from psnode.codecs.device.device_codecs import on_device
from psnode.codecs.device.protocols import DeviceEncoder
from psnode.codecs.payload import assemble
from psnode.codecs.registry import load_codec
from psnode.codecs.rng import Key
from psnode.codecs.svd import Svd
from tests.codecs.device.test_spectral import decays
from tests.codecs.test_dots import inputs
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.hosted import GXX

pytestmark = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
KEY = Key.derive(5, "factor")
EXAMPLE = f"{Path(__file__).parents[3] / 'examples' / 'row_codec.py'}:Levels"
ROWS = ["qsgd", "qsgd:levels=1", "qsgd:levels=300", "minmax", "natural", "nuqsgd", "terngrad"]
SELECTIONS = ["topk:ratio=0.2+qsgd", "threshold+natural", "randk:ratio=0.1+minmax", "topk:ratio=0.01+terngrad+ans"]
SIZES = [1, 511, 512, 513, 2560, 3 * 512 + 5, 6 * 512 + 700]


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    return install(monkeypatch, tmp_path)


def encoder_of(codec: Codec, shape: tuple[int, ...]) -> DeviceEncoder:
    assert isinstance(codec, Contractive)
    found = on_device(codec, CPU)
    assert found is not None
    return found.encoder(shape)


def compare(codec: Codec, encoder: DeviceEncoder, x: np.ndarray, name: str, *, apart: bool) -> None:
    there = torch.zeros(encoder.padded)
    there[: x.size] = torch.from_numpy(x)
    error = torch.full_like(there, 7) if apart else there
    encoder.encode(there, np.array(KEY.words, np.uint64), error)
    body = np.zeros(codec.max_nbytes(x.shape), np.uint8)
    used = encoder.take(body)
    assert encoder.is_finite, name
    lost = np.empty_like(x)
    payload = codec.encode(x, KEY, error=lost)
    assert body[:used].tobytes() == payload.body.tobytes(), name
    assert error[: x.size].numpy().tobytes() == lost.tobytes(), name
    if apart:
        assert there[: x.size].numpy().tobytes() == x.tobytes(), name


@pytest.mark.sweep
@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("spec", ROWS + SELECTIONS)
def test_bodies_and_errors_are_the_hosts(spec: str) -> None:
    codec = get_codec(spec).contractive()
    for number, size in enumerate(SIZES):
        encoder = encoder_of(codec, (size,))
        for name, x in inputs(size).items():
            compare(codec, encoder, x, f"{name}, {size}", apart=bool(number % 2))


@pytest.mark.usefixtures("cupy")
def test_a_codec_of_ones_own_has_its_parameters_behind_the_factor() -> None:
    codec = get_codec(load_codec(EXAMPLE)).contractive()
    verdict = check(codec, CPU)
    assert verdict is not None and verdict.on_device is not None, verdict
    compare(codec, verdict.on_device.encoder((1300,)), inputs(1300)["gaussian"], "", apart=False)


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("spec", ["qsgd", "minmax", "natural", "terngrad", "topk:ratio=1+qsgd"])
def test_what_is_not_finite_is_refused_and_no_error_is_left(spec: str, value: float) -> None:
    encoder = encoder_of(get_codec(spec).contractive(), (1300,))
    for place in (0, 600, 1299):
        x = inputs(1300)["gaussian"].copy()
        x[place] = value
        there = torch.zeros(encoder.padded)
        there[:1300] = torch.from_numpy(x)
        encoder.encode(there, np.array(KEY.words, np.uint64), there)
        assert encoder.take(np.zeros(9000, np.uint8)) == 0 and not encoder.is_finite
        np.testing.assert_array_equal(there[:1300].numpy(), x)
    good = inputs(1300)["gaussian"]
    compare(get_codec(spec).contractive(), encoder, good, "afterwards", apart=False)


@pytest.mark.sweep
@pytest.mark.parametrize("spec", [*ROWS, "topk+qsgd", "svd+qsgd", "svd:rank=2+natural+ans"])
def test_forms_are_trusted_on_a_device_that_gives_the_hosts_bytes(spec: str, cupy: FakeCupy) -> None:
    verdict = check(get_codec(spec).contractive(), CPU)
    assert verdict is not None and verdict.on_device is not None, verdict
    assert ("measure" in cupy.launched) == (spec in ROWS)


@pytest.mark.long
@pytest.mark.parametrize(
    ("right", "wrong", "what"),
    [
        ("products[k] = x[k] * kept[k]", "products[k] = x[k] * x[k]", "another payload of N(0,1)"),
        ("xy = tree_sum(wide)", "xy = 0", "another payload of denormals"),
        ("shown, size - start < 512 ?", "shown, size < 1 ?", "another payload of N(0,1)"),
    ],
)
def test_a_device_that_measures_something_else_is_not_trusted(cupy: FakeCupy, right: str, wrong: str, what: str) -> None:
    cupy.edit = lambda text: text.replace(right, wrong)
    verdict = check(get_codec("natural" if "shown" not in right else "minmax").contractive(), CPU)
    assert verdict is not None and verdict.on_device is None
    assert verdict.line.startswith("contractive(") and what in verdict.line


def test_others_are_the_hosts(cupy: FakeCupy) -> None:
    for spec in ("qsgd:bucket=300", "dithered", "entrywise", "qsgd+ans"):
        codec = get_codec(spec).contractive()
        assert isinstance(codec, Contractive)
        assert check(codec, CPU) is None


@pytest.mark.parametrize("spec", ["svd:rank=3+qsgd", "svd:method=randomised,rank=4+natural"])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_of_spectral_atomo_the_factor_is_that_of_what_is_sent(spec: str, scale: float) -> None:
    """Check that the contractive factor is fitted to the terms that the device sends: <x, y> / <y, y> for the decoded y, so
    that the error is smaller than x.
    """
    codec, x = get_codec(spec).contractive(), decays() * np.float32(scale)
    assert isinstance(codec, Contractive) and isinstance(codec.codec, Chain) and isinstance(codec.codec.reducer, Svd)
    encoder, there = encoder_of(codec, x.shape), torch.from_numpy(x.reshape(-1).copy())
    payload = assemble(codec, x.shape, KEY, lambda words, body: (encoder.encode(there, words, there), encoder.take(body))[1])
    assert there.numpy().tobytes() == (x - codec.decode(payload)).reshape(-1).tobytes()
    c, body = codec.split(payload.body)
    y = np.empty(x.shape, np.float32)
    codec.codec._decode(body, y)
    wide = y.astype(float)
    assert c == pytest.approx(float((x.astype(float) * wide).sum() / (wide * wide).sum()), rel=1e-6)
    assert np.linalg.norm(there.numpy().astype(float)) < np.linalg.norm(x.astype(float))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_where_there_is_no_device_a_summary_is_empty() -> None:
    assert summary() == {"good": [], "problems": []}
