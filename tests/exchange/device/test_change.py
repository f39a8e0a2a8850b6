"""Changes decoded into weights on a stand-in for a device: the weights equal the host's, and only payloads are copied."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from psnode.codecs import Codec, Payload, get_codec
from psnode.codecs.device.change import decoder
from psnode.codecs.device.checks import check
from psnode.codecs.device.protocols import Change
from psnode.codecs.rng import Key
from psnode.errors import PayloadError
from psnode.exchange.device.placing import changes_on
from psnode.exchange.replica import Replica
from psnode.exchange.trained_model import TrainedModel
from psnode.plans.groups import Plan
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.hosted import GXX

pytestmark = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
SPECS = ["bf16", "qsgd", "terngrad"]
KEY = Key.derive(1, "change")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    return install(monkeypatch, tmp_path)


def change_of(codec: Codec, weights: torch.Tensor) -> Change:
    verdict = check(decoder(codec), CPU)
    assert verdict is not None and verdict.on_device is not None, verdict
    return verdict.on_device.change(codec, weights)


def normal(seed: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def edited(payload: Payload, nbytes: int, value: float) -> Payload:
    """Return a payload whose body begins with `nbytes` bytes of `value`, float32."""
    data, start = payload.data.copy(), payload.data.size - payload.body.size
    data[start : start + nbytes].view(np.float32)[:] = value
    return Payload(data)


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("spec", SPECS)
def test_weights_are_those_of_the_host_and_neighbours_stay(spec: str) -> None:
    codec = get_codec(spec).contractive()
    for size in (1, 511, 512, 2560, 3000):
        room = torch.from_numpy(normal(1, size + 1200))
        expected = room.numpy().copy()
        change = change_of(codec, room[600 : 600 + size])
        for seed in (2, 3):
            payload = codec.encode(normal(seed, size), Key.derive(seed, "step"))
            change.add(payload)
            codec.decode_add(payload, expected[600 : 600 + size])
        np.testing.assert_array_equal(room.numpy().view(np.uint32), expected.view(np.uint32), err_msg=str(size))


def test_a_factor_above_one_is_left_to_the_host(cupy: FakeCupy) -> None:
    codec = get_codec("qsgd").contractive()
    payload = codec.encode(normal(1, 3000), KEY)
    larger = edited(payload, 4, 1.5)
    weights = torch.from_numpy(normal(2, 3000))
    expected = weights.numpy().copy()
    change = change_of(codec, weights)
    cupy.launched.clear()
    change.add(larger)
    codec.decode_add(larger, expected)
    np.testing.assert_array_equal(weights.numpy(), expected)
    assert cupy.launched == [] and not np.array_equal(expected, normal(2, 3000))


def test_a_body_of_another_length_than_the_kernels_is_left_to_the_host(cupy: FakeCupy) -> None:
    codec = get_codec("qsgd")
    weights = torch.from_numpy(normal(2, 3000))
    expected = weights.numpy().copy()
    change = change_of(codec, weights)
    cupy.launched.clear()
    payload = get_codec("qsgd:levels=7").encode(normal(1, 3000), KEY)  # any qsgd can decode this payload
    change.add(payload)
    codec.decode_add(payload, expected)
    np.testing.assert_array_equal(weights.numpy(), expected)
    assert cupy.launched == []


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("spec", ["qsgd", "terngrad", "bf16"])
def test_what_is_no_payload_of_the_segment_changes_nothing(spec: str) -> None:
    codec = get_codec(spec).contractive()
    weights = torch.from_numpy(normal(2, 3001))
    change = change_of(codec, weights)
    sound = codec.encode(normal(1, 3001), KEY)
    cut = Payload(sound.data[:-1])
    long = Payload(np.append(sound.data, np.uint8(1)))
    infinite = edited(sound, 16, np.inf)
    others = [cut, long, codec.encode(normal(1, 3000), KEY), get_codec("fp16").encode(normal(1, 3001), KEY)]
    for payload in [*others, *([infinite] if spec != "bf16" else [])]:
        with pytest.raises(PayloadError):
            change.add(payload)
    np.testing.assert_array_equal(weights.numpy(), normal(2, 3001))


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize(("spec", "code"), [("bf16", 0x7F80), ("bf16", 0xFFC0), ("fp16", 0x7C00), ("fp16", 0xFE01)])
def test_a_half_that_is_not_finite_changes_nothing(spec: str, code: int) -> None:
    codec, weights = get_codec(spec), torch.from_numpy(normal(2, 700))
    payload = codec.encode(normal(1, 700), KEY)
    data = payload.data.copy()
    data[-2:].view(np.uint16)[0] = code
    with pytest.raises(PayloadError, match="not finite"):
        change_of(codec, weights).add(Payload(data))
    np.testing.assert_array_equal(weights.numpy(), normal(2, 700))


@pytest.mark.usefixtures("cupy")
def test_other_parameters_in_as_many_bits_change_nothing() -> None:
    """Check that a codec of 5 levels refuses a payload of 7 levels, and leaves the weights unchanged, although both use
    codes of 4 bits.
    """
    ours, theirs = (get_codec(f"qsgd:levels={levels}").contractive() for levels in (5, 7))
    weights = torch.from_numpy(normal(2, 700))
    with pytest.raises(PayloadError, match="levels"):
        change_of(ours, weights).add(theirs.encode(normal(1, 700), KEY))
    np.testing.assert_array_equal(weights.numpy(), normal(2, 700))


@pytest.mark.usefixtures("cupy")
def test_a_segment_without_values_is_left_alone() -> None:
    plan = Plan.from_dict({"tensors": [["a", [0]], ["b", [600]]], "groups": [[["qsgd", 0, [0]], ["qsgd", 0, [600]]]]})
    codecs = [get_codec("qsgd").contractive()] * 2
    assert list(changes_on(plan, codecs, torch.zeros(600)).by_segment) == [1]


def test_the_host_has_no_part_in_a_change_of_a_replica_on_a_device(cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a change on the device uses no value from the host's copy of the weights: the copy is filled with NaN,
    which would show.
    """
    monkeypatch.setattr("psnode.exchange.replica._is_host", lambda device: False)
    model = nn.Linear(40, 75)  # 3000 weights and 75 biases
    tensors = [["weight", [75, 40]], ["bias", [75]]]
    plan = Plan.from_dict({"tensors": tensors, "groups": [[["qsgd", 0, [3000]], ["identity", 3000, [75]]]]})
    theta = TrainedModel(model, plan, CPU).vector
    replica = Replica(theta)
    before = theta.numpy().copy()
    codecs = [get_codec("qsgd").contractive(), get_codec("identity")]
    assert [verdict.problem for verdict in replica.change_on_device(plan, codecs)] == [""]
    replica.weights[:3000] = np.nan
    payloads = [codec.encode(normal(at, size), KEY) for at, (codec, size) in enumerate(zip(codecs, (3000, 75), strict=True))]
    cupy.launched.clear()
    for segment, codec, payload in zip(plan.segments, codecs, payloads, strict=True):
        codec.decode_add(payload, before[segment.start : segment.stop])
        replica.change(segment, codec, payload)
    assert set(cupy.launched) == {"decode"}
    np.testing.assert_array_equal(theta.numpy(), before)
    np.testing.assert_array_equal(model.weight.detach().numpy().reshape(-1), before[:3000])
    np.testing.assert_array_equal(replica.weights[3000:], before[3000:])
    monkeypatch.undo()
    assert replica.digest() == Replica(torch.from_numpy(before)).digest()
