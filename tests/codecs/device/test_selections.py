"""Selections on a stand-in for a device, which runs the kernels' text: payloads and residuals equal the host's byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.codecs import Codec, Payload, get_codec
from psnode.codecs.contractive import Contractive
from psnode.codecs.device.change import ChangeOfEntries
from psnode.codecs.device.checks import check, check_entries
from psnode.codecs.device.device_codecs import SelectionOnDevice, on_device
from psnode.codecs.device.differences import inputs
from psnode.codecs.device.gap_code import written
from psnode.codecs.device.protocols import DeviceEncoder
from psnode.codecs.rng import Key
from psnode.codecs.selection import indices
from psnode.errors import ConfigurationError, PayloadError
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.hosted import GXX

with_gxx = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
KEY = Key.derive(1, "select")
SELECTIONS = [
    *("topk", "topk:ratio=0.001", "topk:ratio=0.3", "topk:ratio=0.8", "topk:ratio=0.01,sampled=true", "graddrop"),
    *("threshold", "threshold:tau=0.5", "threshold:tau=9", "randk", "randk:scaled=false,ratio=0.4"),
]
CHAINS = [
    *("topk+fp16", "threshold+bf16", "randk+fp16", "topk+qsgd", "topk:ratio=0.1+scaledsign"),
    *("topk+fp16+zstd", "graddrop+natural+ans"),
]
SPARSE = [*SELECTIONS, *CHAINS, "entrywise", "contractive(randk)", "contractive(entrywise)"]


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    return install(monkeypatch, tmp_path)


def encoder_of(codec: Codec, size: int) -> DeviceEncoder:
    found = on_device(codec, CPU)
    assert isinstance(found, SelectionOnDevice)
    return found.encoder((size,))


def coded(codec: Codec, x: np.ndarray) -> tuple[bytes, np.ndarray]:
    """Return the body and the residual that the device computes."""
    encoder = encoder_of(codec, x.size)
    values = torch.zeros(encoder.padded)
    values[: x.size] = torch.tensor(x)
    body = np.full(codec.max_nbytes(x.shape), 0xAA, np.uint8)
    encoder.encode(values, np.array(KEY.words, np.uint64), values)
    used = encoder.take(body)
    assert encoder.is_finite and not values[x.size :].any()
    return body[:used].tobytes(), values[: x.size].numpy()


def assert_as_on_the_host(codec: Codec, x: np.ndarray) -> None:
    error = x.copy()
    payload = codec.encode(error, KEY, error=error)
    body, left = coded(codec, x)
    assert body == payload.body.tobytes()
    np.testing.assert_array_equal(left.view(np.uint32), error.view(np.uint32))


@with_gxx
@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("spec", [*SELECTIONS, *CHAINS])
def test_payloads_and_residuals_are_those_of_the_host(spec: str) -> None:
    codec = get_codec(spec)
    for _, x in inputs():
        assert_as_on_the_host(codec, x)


@with_gxx
@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("spec", SELECTIONS)
@pytest.mark.parametrize("size", [1, 2, 31, 511, 512, 4096, 4097, 40_000])
def test_arrays_of_any_length(spec: str, size: int) -> None:
    rng = np.random.default_rng(size)
    assert_as_on_the_host(get_codec(spec), rng.standard_normal(size).astype(np.float32))
    assert_as_on_the_host(get_codec(spec), np.zeros(size, np.float32))
    assert_as_on_the_host(get_codec(spec), np.full(size, -2.5, np.float32))  # all ties: the lowest indices are sent
    assert_as_on_the_host(get_codec(spec), rng.choice([-1.0, 0.0, -0.0, 1e-42, 3e38], size).astype(np.float32))


@with_gxx
@pytest.mark.usefixtures("cupy")
def test_topk_sends_what_sorting_finds() -> None:
    """Check the sent values against the largest ones, which NumPy's stable sort finds without psnode."""
    x = np.round(np.random.default_rng(3).standard_normal(20_000), 1).astype(np.float32)  # a few dozen values, many ties
    expected = np.sort(np.argsort(-np.abs(x), kind="stable")[:200])
    codec = get_codec("topk:ratio=0.01")
    encoder = encoder_of(codec, x.size)
    values = torch.zeros(encoder.padded)
    values[: x.size] = torch.tensor(x)
    encoder.encode(values, np.array(KEY.words, np.uint64), values)
    encoder.take(np.zeros(codec.max_nbytes(x.shape), np.uint8))
    left = x.copy()
    left[expected] = 0
    np.testing.assert_array_equal(values[: x.size].numpy(), left)


@with_gxx
@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("spec", ["topk", "threshold", "threshold:tau=1", "graddrop", "randk", "topk+qsgd"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_value_that_is_not_finite_is_noticed(spec: str, value: float) -> None:
    x = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    x[4321] = value
    encoder = encoder_of(get_codec(spec), x.size)
    values = torch.zeros(encoder.padded)
    values[: x.size] = torch.tensor(x)
    encoder.encode(values, np.array(KEY.words, np.uint64), values)
    assert encoder.take(np.zeros(1 << 15, np.uint8)) == 0 and not encoder.is_finite


@pytest.mark.parametrize("size", [8, 9, 100, 1000, 30_000, 1 << 20])
def test_indices_are_coded_as_on_the_host(size: int) -> None:
    rng = np.random.default_rng(size)
    for trial in range(40):
        count = int(rng.integers(1, size // 8 + 1))
        spread = np.sort(rng.choice(size, count, replace=False))
        centres = rng.integers(0, size, max(1, count // 20))
        near = np.unique(np.clip((centres[:, None] + rng.integers(-9, 10, (centres.size, 20))).reshape(-1), 0, size - 1))
        chosen = np.asarray(near[: size // 8] if trial % 2 else spread, np.uint32)
        expected = np.zeros(indices.max_nbytes(chosen.size, size), np.uint8)
        used = indices.write(chosen, size, expected)
        code = written(torch.from_numpy(chosen.astype(np.int32)), size)
        assert code is not None
        assert code[0] + code[1].numpy().tobytes() == expected[:used].tobytes()


def test_sets_that_are_no_gaps_are_left_to_the_host() -> None:
    assert written(torch.zeros(0, dtype=torch.int32), 100) is None
    assert written(torch.arange(13, dtype=torch.int32), 100) is None


@pytest.mark.parametrize("spec", SPARSE)
def test_entries_are_what_a_payload_decodes_to(spec: str) -> None:
    codec = get_codec(spec) if "(" not in spec else get_codec(spec[12:-1]).contractive()
    for seed, size in enumerate([1, 700, 30_000]):
        payload = codec.encode(np.random.default_rng(seed).standard_normal(size).astype(np.float32), KEY)
        entries = codec.entries(payload)
        assert entries is not None and np.all(np.diff(entries.indices.astype(np.int64)) > 0)
        decoded = np.zeros(size, np.float32)
        decoded[entries.indices] = entries.values
        np.testing.assert_array_equal(decoded, codec.decode(payload))


def test_codecs_that_are_not_sparse_have_no_entries() -> None:
    x = np.ones(600, np.float32)
    for spec in ("qsgd", "fp16", "qsgd+ans", "polar"):
        assert get_codec(spec).entries(get_codec(spec).encode(x, KEY)) is None
    topk = get_codec("topk")
    assert topk.entries(topk.encode(x[:0], KEY)) is None


@pytest.mark.parametrize("spec", SPARSE)
def test_changes_are_added_to_weights_where_these_lie(spec: str) -> None:
    codec = get_codec(spec) if "(" not in spec else get_codec(spec[12:-1]).contractive()
    rng = np.random.default_rng(1)
    room = torch.from_numpy(rng.standard_normal(5000).astype(np.float32))
    expected = room.numpy().copy()
    change = ChangeOfEntries(codec, room[700:3700])
    for seed in range(3):
        payload = codec.encode(rng.standard_normal(3000).astype(np.float32), Key.derive(seed, "change"))
        change.add(payload)
        codec.decode_add(payload, expected[700:3700])
    np.testing.assert_array_equal(room.numpy().view(np.uint32), expected.view(np.uint32))
    assert check_entries(codec, CPU).problem == ""


@pytest.mark.parametrize("scale", [-0.4, 1.5, 1e38])
@pytest.mark.parametrize("spec", ["randk", "entrywise", "randk+qsgd"])
def test_a_factor_in_front_leaves_the_signs_of_zeros_alone(spec: str, scale: float) -> None:
    """Check that a contractive factor does not change weights without an entry in the payload, on host and device: -0 does
    not become 0.
    """
    codec = Contractive(get_codec(spec))
    data = codec.encode(np.random.default_rng(1).standard_normal(700).astype(np.float32) / 1000, KEY).data.copy()
    start = data.size - Payload(data).body.size
    data[start : start + 4].view(np.float32)[0] = scale
    payload, weights = Payload(data), np.full(700, -0.0, np.float32)
    there = torch.from_numpy(weights.copy())
    codec.decode_add(payload, weights)
    ChangeOfEntries(codec, there).add(payload)
    assert weights.tobytes() == there.numpy().tobytes()
    assert np.signbit(np.delete(weights, codec.support(payload))).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("spec", ["topk", "entrywise:budget=0.9", "contractive(entrywise:budget=0.9)"])
def test_a_payload_with_a_value_that_is_not_finite_changes_nothing(spec: str, value: float) -> None:
    codec = get_codec(spec) if "(" not in spec else get_codec(spec[12:-1]).contractive()
    before = np.random.default_rng(1).standard_normal(700).astype(np.float32)
    data = codec.encode(before**3, KEY).data.copy()
    data[-4:].view(np.float32)[0] = value
    weights, there = before.copy(), torch.from_numpy(before.copy())
    with pytest.raises(PayloadError, match="not finite"):
        codec.decode_add(Payload(data), weights)
    with pytest.raises(PayloadError, match="not finite"):
        ChangeOfEntries(codec, there).add(Payload(data))
    assert weights.tobytes() == there.numpy().tobytes() == before.tobytes()


@with_gxx
def test_a_device_that_selects_otherwise_is_not_trusted(cupy: FakeCupy) -> None:
    for right, wrong in [
        ("GE(ranks", "GT(ranks"),
        ("512 * SELECT_ROWS * at", "500 * SELECT_ROWS * at"),
    ]:
        cupy.edit = lambda text, right=right, wrong=wrong: text.replace(right, wrong)  # type: ignore[misc]
        verdict = check(get_codec("threshold:tau=0.5"), CPU)
        assert verdict is not None and verdict.on_device is None and "another payload of" in verdict.problem


def test_a_device_that_adds_otherwise_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChangeOfEntries, "add", lambda change, payload: None)
    assert check_entries(get_codec("topk"), CPU).problem == "the device makes other sums of N(0,1)"


def test_without_cupy_nothing_is_selected_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(ConfigurationError, match="CuPy cannot be imported"):
        check(get_codec("topk"), CPU)


@with_gxx
@pytest.mark.usefixtures("cupy")
def test_it_selects_where_torch_is_to_be_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that selections work in torch's deterministic mode, in which torch.kthvalue raises an error on CUDA. Here a
    stand-in for torch.kthvalue raises this error.
    """

    def refused(*_: object) -> None:
        raise RuntimeError("kthvalue CUDA does not have a deterministic implementation")

    monkeypatch.setattr(torch, "kthvalue", refused)
    torch.use_deterministic_algorithms(True)
    try:
        for spec in ("topk", "graddrop", "topk+fp16"):
            assert_as_on_the_host(get_codec(spec), np.random.default_rng(1).standard_normal(40_000).astype(np.float32))
    finally:
        torch.use_deterministic_algorithms(False)
