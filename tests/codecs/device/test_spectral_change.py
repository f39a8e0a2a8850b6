"""Payloads of svd added to weights on a device (here torch's CPU), compared with the host; and the check of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from psnode.codecs import Codec, Payload, get_codec
from psnode.codecs.arrays import Floats
from psnode.codecs.device import spectra, spectral
from psnode.codecs.device.spectral import SpectralChange, SpectralEncoder, add_terms
from psnode.codecs.device.spectral_checks import problem
from psnode.codecs.rng import Key
from psnode.errors import PayloadError

CPU = torch.device("cpu")
KEY = Key.derive(1, "change")
LARGEST = float(np.finfo(np.float32).max)
SPECS = ["svd", "svd:rank=1", "svd:rank=2", "svd:rank=7", "svd:sample=false", "svd+qsgd:levels=127", "svd+qsgd:levels=7+ans"]


def gaussian(*shape: int, seed: int = 0) -> Floats:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


def both(codec: Codec, payload: Payload) -> tuple[bytes, bytes]:
    """Add `payload` to weights on the host and on the device, and return both results. The weights lie between other values,
    which must not change.
    """
    size = int(np.prod(payload.shape))
    weights = gaussian(size + 20, seed=5)
    there = torch.from_numpy(weights.copy())
    SpectralChange(codec, there[10 : 10 + size]).add(payload)
    codec.decode_add(payload, weights[10 : 10 + size])
    return weights.tobytes(), there.numpy().tobytes()


def with_scale(payload: Payload, scale: float) -> Payload:
    """Return a payload of a contractive form with its leading factor replaced."""
    data, start = payload.data.copy(), payload.data.size - payload.body.size
    data[start : start + 4].view(np.float32)[:] = scale
    return Payload(data)


@pytest.mark.parametrize("form", ["plain", "contractive"])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("shape", [(), (300,), (0,), (40, 60), (60, 40), (5, 3000), (16, 8, 3, 3)])
def test_weights_are_those_of_the_host(shape: tuple[int, ...], spec: str, form: str) -> None:
    codec = get_codec(spec) if form == "plain" else get_codec(spec).contractive()
    host, device = both(codec, codec.encode(gaussian(*shape), KEY))
    assert host == device


@pytest.mark.parametrize("scale", [-0.37, 0.0, 1.0, 1.5])
def test_a_factor_in_front_is_the_host_s(scale: float) -> None:
    codec = get_codec("svd+qsgd").contractive()
    host, device = both(codec, with_scale(codec.encode(gaussian(40, 60), KEY), scale))
    assert host == device


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_sums_that_leave_float32_are_cut_off_as_on_the_host() -> None:
    codec = get_codec("svd:rank=2")
    payload = codec.encode(gaussian(40, 60), KEY)
    data, start = payload.data.copy(), payload.data.size - payload.body.size
    data[start + 8 :].view(np.float32)[:] *= np.float32(1e19)
    host, device = both(codec, Payload(data))
    assert host == device
    assert np.abs(codec.decode(Payload(data))).max() == LARGEST


def test_of_no_terms_nothing_is_added() -> None:
    host, device = both(get_codec("svd"), get_codec("svd").encode(np.zeros((40, 60), np.float32), KEY))
    assert host == device == gaussian(2420, seed=5).tobytes()


@pytest.mark.parametrize("spec", ["svd", "svd+qsgd"])
@pytest.mark.parametrize("form", ["plain", "contractive"])
def test_what_is_no_payload_of_the_segment_changes_nothing(form: str, spec: str) -> None:
    codec = get_codec(spec) if form == "plain" else get_codec(spec).contractive()
    weights = torch.from_numpy(gaussian(2400, seed=5))
    change = SpectralChange(codec, weights)
    sound = codec.encode(gaussian(40, 60), KEY)
    infinite = Payload.from_bytes(sound.to_bytes()[:-4] + np.float32(np.inf).tobytes())
    bad = [Payload(sound.data[:-1]), Payload(np.append(sound.data, np.uint8(1))), codec.encode(gaussian(40, 61), KEY)]
    for payload in [*bad, get_codec("fp16").encode(gaussian(40, 60), KEY), *([infinite] if codec.id == "svd" else [])]:
        with pytest.raises(PayloadError):
            change.add(payload)
    assert weights.numpy().tobytes() == gaussian(2400, seed=5).tobytes()


@pytest.mark.parametrize("weight", [-1.0, 0.25, 1 / 3])
@pytest.mark.parametrize("rank", [0, 1, 2, 3, 6])
def test_terms_are_float32_products_added_in_order(rank: int, weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectral, "_BLOCK", 7 * 90)
    left, right, out = gaussian(rank, 50, seed=1), gaussian(rank, 90, seed=2), gaussian(50, 90, seed=3)
    there = torch.from_numpy(out.copy())
    add_terms(torch.from_numpy(left), torch.from_numpy(right), there, np.float32(weight))
    total = None
    for column, row in zip(left, right, strict=True):
        total = np.outer(column, row) if total is None else total + np.outer(column, row)
    expected = out if total is None else out + np.float32(weight) * total
    assert there.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("spec", ["svd", "svd:method=randomised,cover=true"])
@pytest.mark.parametrize("shape", [(100, 130), (130, 100)])
def test_blocks_of_a_large_matrix_give_what_one_gives(shape: tuple[int, int], spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.from_numpy(gaussian(*shape).reshape(-1))
    bodies = []
    for block in (1 << 22, 1000, 1):
        monkeypatch.setattr(spectra, "_BLOCK", block)
        encoder = SpectralEncoder(get_codec(spec), shape, CPU)  # type: ignore[arg-type]
        encoder.encode(x, np.array(KEY.words, np.uint64))
        out = np.zeros(1 << 16, np.uint8)
        bodies.append(out[8 : encoder.take(out)].view(np.float32))
    for body in bodies[1:]:
        np.testing.assert_allclose(body, bodies[0], rtol=0, atol=1e-5 * float(np.abs(bodies[0]).max()))


# the check of a device


@pytest.mark.parametrize(
    "spec",
    [
        *("svd", "svd:rank=2.5", "svd:rank=300", "svd:sample=false", "svd:method=deflated", "svd:method=deflated,sample=false"),
        *("svd:method=randomised", "svd:method=randomised,cover=true", "svd+qsgd:levels=127", "svd+qsgd+ans"),
    ],
)
def test_a_device_that_does_as_the_processor_is_trusted(spec: str) -> None:
    assert problem(get_codec(spec), CPU) == ""  # type: ignore[arg-type]


def _scaled(made: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *arguments: made(*arguments) * 1.001


def _turned(made: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an eigensolver: its eigenvectors are then wrong by a thousandth."""

    def turned(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        squares, basis = made(matrix)
        return squares, basis + 1e-3 * basis.roll(1, 0)

    return turned


@pytest.mark.parametrize(
    ("spec", "place", "name", "change", "what"),
    [
        ("svd", spectral, "_folded", _scaled, "other terms"),
        ("svd", torch.linalg, "eigh", _turned, "other terms"),
        ("svd:method=randomised,cover=true", spectra, "_energy", _scaled, "other terms"),
        ("svd:method=randomised", torch.linalg, "qr", lambda made: lambda matrix: (matrix, None), "other terms"),
        (
            "svd",
            spectral,
            "add_terms",
            lambda made: lambda a, b, out, weight: out.add_(a.T @ b * float(weight)),
            "another residual",
        ),
        ("svd", spectral, "SIDE", lambda made: 2, "linear algebra failed"),
    ],
)
def test_a_device_that_does_something_else_is_named(
    spec: str, place: Any, name: str, change: Callable[[Any], Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, name, change(getattr(place, name)))
    assert what in problem(get_codec(spec), CPU)  # type: ignore[arg-type]


def test_a_device_that_takes_no_notice_of_infinities_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.aminmax
    monkeypatch.setattr(torch, "aminmax", lambda x: tuple(each.nan_to_num() for each in made(x)))
    found = problem(get_codec("svd"), CPU)  # type: ignore[arg-type]
    assert found


def test_a_device_that_fails_is_named_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(matrix: torch.Tensor) -> None:
        raise RuntimeError("cusolver error: 7\nwhen calling `cusolverDnXsyevd`")

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    found = problem(get_codec("svd"), CPU)  # type: ignore[arg-type]
    assert found.startswith("its linear algebra failed: ") and "cusolver" in found and "\n" not in found


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("spec", ["svd", "svd:method=deflated", "svd:method=randomised,cover=true", "svd+qsgd"])
def test_a_gpu_does_as_the_processor(spec: str) -> None:
    assert problem(get_codec(spec), torch.device("cuda", 0)) == ""  # type: ignore[arg-type]
