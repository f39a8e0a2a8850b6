"""Buffers on the host through which payloads pass: their bytes, the waits, and memory that is pinned only for CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.codecs import get_codec
from psnode.codecs.device.staging_buffer import StagingBuffer
from psnode.exchange.device.placing import changes_on
from psnode.plans.groups import Plan
from psnode.protocol.round import Round
from tests.exchange.device.streams import Stream, Streams
from tests.exchange.device.test_segments import Both
from tests.rows.fake_cupy import CPU, install
from tests.rows.forms import KEY
from tests.rows.hosted import GXX


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Streams:
    install(monkeypatch, tmp_path)
    return Streams(monkeypatch)


def notes(streams: Streams) -> list[str]:
    """Return the actions that were noted since the last call."""
    found, streams.notes[:] = [note[0] for note in streams.notes], []
    return found


def test_bytes_come_down_when_their_own_copy_is_over(streams: Streams) -> None:
    source = torch.arange(200, dtype=torch.uint8)
    room = StagingBuffer(300, CPU)
    np.testing.assert_array_equal(room.down(source[:50]), np.arange(50))
    assert streams.notes[0][2] is streams.notes[1][2] and notes(streams) == ["record", "synchronize"]
    np.testing.assert_array_equal(room.down(source), np.arange(200))


def test_what_goes_up_leaves_before_the_room_is_used_again(streams: Streams) -> None:
    target, room = torch.zeros(6, dtype=torch.uint8), StagingBuffer(8, CPU)
    room.free(6)[:] = 7
    room.up(target)
    assert notes(streams) == ["synchronize", "record"] and target.tolist() == [7] * 6
    room.free(2)[:] = 9
    room.up(target[4:])
    assert notes(streams) == ["synchronize", "record"] and target.tolist() == [7, 7, 7, 7, 9, 9]


def test_copies_are_waited_for_where_the_memory_lies(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a copy is waited for on the device of its memory. The thread's current device may differ, as in the doctor,
    which checks devices one after another.
    """
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device=None: Stream(name="elsewhere" if device is None else str(device))
    )
    target, room = torch.zeros(6, dtype=torch.uint8), StagingBuffer(8, CPU)
    room.down(target)
    room.free(6)
    room.up(target)
    assert [stream for what, stream, _ in streams.notes if what == "record"] == ["cpu"] * 2


@pytest.mark.usefixtures("streams")
@pytest.mark.parametrize(("kind", "pinned"), [("cuda", True), ("cpu", False)])
def test_memory_is_pinned_beside_cuda_and_taken_at_the_first_use(
    kind: str, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    real = torch.empty

    def empty(size: int, *, pin_memory: bool = False, **rest: Any) -> torch.Tensor:
        asked.append({"size": size, "pin_memory": pin_memory})
        return real(size, **rest)

    room = StagingBuffer(64, torch.device(kind))
    monkeypatch.setattr(torch, "empty", empty)
    for _ in range(2):
        assert room.free(10).shape == (10,)
    assert asked == [{"size": 64, "pin_memory": pinned}]


@pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
def test_a_step_waits_for_copies_of_payloads_alone(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a step waits only for copies of payloads, and that payloads pass only through staging buffers."""
    both = Both("ef")
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: pytest.fail("a copy through pageable memory"))
    for sender, master in zip(both.senders, both.masters, strict=True):
        sender.begin(Round.after(0), measure=False)
        sender.push(0)
        sender.drain()
        master.next(10)
    assert {(what, stream) for what, stream, _ in streams.notes} == {("record", "coding"), ("synchronize", "coding")}
    # per segment: its payload, and the end of the work on its memories
    assert notes(streams) == ["record", "synchronize", "record"] * 2
    for sender in both.senders:
        sender.close()


@pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
def test_a_change_is_given_to_the_device_and_not_waited_for(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = get_codec("qsgd").contractive()
    plan = Plan.from_dict({"tensors": [["a", [3000]]], "groups": [[["qsgd", 0, [3000]]]]})
    weights, expected = torch.zeros(3000), np.zeros(3000, np.float32)
    change = changes_on(plan, [codec], weights).by_segment[0]
    notes(streams)
    for seed in (1, 2):
        payload = codec.encode(np.random.default_rng(seed).standard_normal(3000).astype(np.float32), KEY)
        codec.decode_add(payload, expected)
        change.add(payload)
        assert notes(streams) == ["synchronize", "record"]  # waits for the previous copy, which has long ended
    np.testing.assert_array_equal(weights.numpy(), expected)
