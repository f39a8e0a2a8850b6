"""Waits between streams: a reader must wait for a writer on another stream, which results on a processor cannot show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.codecs import get_codec
from psnode.exchange.device.segment import DeviceSegment
from psnode.exchange.replica import Replica
from psnode.plans.groups import Plan
from psnode.protocol.round import Round
from tests.exchange.device.streams import Stream, Streams
from tests.exchange.device.test_segments import Both
from tests.rows.fake_cupy import install
from tests.rows.forms import KEY
from tests.rows.hosted import GXX

pytestmark = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Streams:
    install(monkeypatch, tmp_path)
    return Streams(monkeypatch)


def test_memories_come_to_the_host_behind_the_masking_of_momenta(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that reading the memories waits for an event that the coding stream records after the masking. Otherwise the
    reading, on another stream, could come first.
    """
    whole, read = DeviceSegment._forget, torch.Tensor.cpu

    def forget(segment: DeviceSegment, *given: object) -> None:
        whole(segment, *given)  # type: ignore[arg-type]
        streams.note("mask")

    def cpu(tensor: torch.Tensor) -> torch.Tensor:
        streams.note("read", tensor.numel())
        return read(tensor)

    both = Both("dgc:momentum=0.9")
    monkeypatch.setattr(DeviceSegment, "_forget", forget)
    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    device = both.senders[1]
    for number in (1, 2):
        device.begin(Round.after(number - 1), measure=False)
        device.push(0)
        device.drain()
        pushed, streams.notes[:] = list(streams.notes), []
        masked = [at for at, note in enumerate(pushed) if note[:2] == ("mask", "coding")]
        behind = [pushed[at + 1] for at in masked if at + 1 < len(pushed)]
        assert [note[:2] for note in behind] == [("record", "coding")] * 2  # one per segment
        device.state()
        read_back, streams.notes[:] = list(streams.notes), []
        assert [note[:2] for note in read_back] == [("wait", "training"), *[("read", "training")] * 2] * 2  # two memories
        assert [read_back[0][2], read_back[3][2]] == [note[2] for note in behind]
    for sender in both.senders:
        sender.close()


@pytest.mark.usefixtures("streams")
def test_memories_that_are_home_are_waited_for_no_more(streams: Streams) -> None:
    both = Both("ef")
    both.step(1)
    both.senders[1].state()
    streams.notes.clear()
    both.senders[1].state()
    assert streams.notes == []
    for sender in both.senders:
        sender.close()


def test_a_change_on_a_stream_of_the_models_own_is_there_before_anybody_uses_it(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the host waits for a change that is made on a module's own stream, since later layers may use another stream."""
    monkeypatch.setattr("psnode.exchange.replica._is_host", lambda device: False)
    plan = Plan.from_dict({"tensors": [["weight", [75, 40]]], "groups": [[["qsgd", 0, [3000]]]]})
    replica, codec = Replica(torch.zeros(3000)), get_codec("qsgd").contractive()
    replica.change_on_device(plan, [codec])
    payload = codec.encode(np.random.default_rng(1).standard_normal(3000).astype(np.float32), KEY)
    streams.notes.clear()
    replica.change(plan.segments[0], codec, payload)
    assert streams.notes[-1][0] != "synchronize"
    with streams.entered(Stream(name="module")):
        replica.change(plan.segments[0], codec, payload)
    recorded, waited = streams.notes[-2:]
    assert recorded[:2] == ("record", "module") and waited[0] == "synchronize" and waited[2] is recorded[2]
