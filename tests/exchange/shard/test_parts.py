"""A shard of some groups treats them bit for bit as a shard of all groups does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError
from psnode.exchange.flow_control import FlowControl
from psnode.exchange.routes.route import Route
from psnode.exchange.routes.topologies import routes_of
from psnode.exchange.shard.consistency import rule_of
from psnode.exchange.shard.shard import Shard
from psnode.exchange.shard.shard_events import GroupClosed
from psnode.exchange.update.served_model import ServedModel
from psnode.exchange.update.weight_vector import Weights, WeightsWithoutModel
from psnode.plans.coding import Coding, gradient_key
from psnode.plans.groups import Plan, Tensor
from psnode.plans.part import part_of
from psnode.plans.roles import Layout
from psnode.plans.rule import make_plan
from psnode.protocol import wire
from psnode.protocol.channel import FrameChannel
from psnode.protocol.round import Round
from psnode.protocol.wire import Frame, Kind
from psnode.records import checkpoint
from psnode.records.checkpoint import Checkpoint
from psnode.records.staging import StagedCheckpoint
from psnode.records.timeline import Tracer
from psnode.transport.loopback import loopback_group

SECONDS = 60.0
WORKERS = 3
Floats = npt.NDArray[np.float32]
SETTINGS: dict[str, dict[str, Any]] = {
    "dense": {"scheme": "dense", "momentum": 0.9},
    "Adam": {"scheme": "qsgd", "optimizer": "adam", "lr": 0.01},
    "torch's": {"scheme": "qsgd", "optimizer": "rmsprop", "lr": 0.01},
    "averaged": {"scheme": "qsgd", "ema_decay": 0.9},
    "top-k, coded downlink": {"scheme": "topk:ratio=0.1", "downlink": "topk:ratio=0.2"},
    "signs, by majority": {"scheme": "signsgd"},
    "clipped to the median": {"scheme": "qsgd", "aggregator": "mean:clip=median", "norm_cap": 0.0},
    "whole tensors": {"scheme": "dense", "optimizer": "sgd", "group_by": "layer", "norm_cap": 10.0},
}


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(100, 90), nn.Linear(90, 70), nn.Linear(70, 3))


def plan_for(config: Config) -> Plan:
    """Return a plan with tensors that are split over groups, unless the settings ask for a group per layer."""
    tensors = [Tensor(name, tuple(value.shape)) for name, value in reversed(list(network().named_parameters()))]
    by = "layer" if config.group_by == "layer" else "bytes"
    return make_plan(tensors, resolve(config).codec, group_by=by, group_bytes=16384, min_compress_bytes=0)  # type: ignore[arg-type]


class Played:
    """A shard of some groups on rank 0, with the workers' gradients."""

    def __init__(self, config: Config, groups: Iterable[int], routes: Sequence[Route] = ()) -> None:
        self.config, self.scheme, self.plan = config, resolve(config), plan_for(config)
        self.part, self.ends = part_of(self.plan, groups), loopback_group(WORKERS + 1)
        self.link, self.flow_control = FrameChannel(self.ends[0]), FlowControl(4 * self.part.own.size)
        coding = Coding(self.plan, self.scheme)
        self.codecs = coding.up
        whole = ServedModel(network(), self.plan, torch.empty(self.plan.size))
        self.weights: Weights = whole
        if not self.part.is_whole:
            pieces = [whole.vector[self.plan.groups[index].start : self.plan.groups[index].stop] for index in self.part.groups]
            self.weights = WeightsWithoutModel(self.part.own, torch.cat(pieces))
        self.shard = Shard(
            coding, self.part.groups, config, self.weights, self.link, rule_of(config, WORKERS),
            lambda now: 0.1, routes or routes_of(Layout(WORKERS), self.plan), Tracer(0, enabled=False),
            flow_control=self.flow_control,
        )  # fmt: skip

    def frame(self, rank: int, version: int, index: int) -> Frame:
        group = self.plan.groups[index]
        making = wire.GroupFrame(len(group.segments), 8 * group.size + 4096)
        for segment in group.segments:
            drawn = np.random.default_rng([rank, version, segment.index]).standard_normal(segment.shape).astype(np.float32)
            key = gradient_key(0, rank, version + 1, index, segment.index)
            making.take(self.codecs[segment.index].encode(drawn, key, out=making.room).nbytes)
        sealed = making.seal(Kind.GRADIENT, sender=rank, job=0, group=index, step=version + 1, version=version)
        return wire.unpack(sealed, job=0, source=rank)

    def take(self, first: int, last: int) -> list[GroupClosed]:
        events: list[GroupClosed] = []
        self.shard.admit(range(1, WORKERS + 1), first)
        for version in range(first, last):
            self.shard.open(Round.after(version))
            for index in self.part.groups:
                assert all(self.shard.offer(self.frame(rank, version, index)) for rank in range(1, WORKERS + 1))
            found = [self.link.next(SECONDS) for _ in self.part.groups]
            assert all(isinstance(event, GroupClosed) for event in found), found
            events += sorted(found)  # type: ignore[type-var]
        self.posted = len(events)
        return events

    def received(self, rank: int = 1) -> list[tuple[int, int, bytes]]:
        """Return the frames that a worker received, by version and group."""
        channel = FrameChannel(self.ends[rank])
        frames = [channel.next(SECONDS) for _ in range(self.posted)]
        assert channel.inbox.poll() is None
        return sorted((frame.version, frame.group, bytes(frame.body)) for frame in frames if isinstance(frame, Frame))

    def close(self) -> None:
        self.shard.__exit__(None, None, None)


def vectors(played: Played, index: int) -> list[Floats]:
    """Return y and all other values of a group that later versions change."""
    group = played.part.groups[index]
    return [played.shard.replica[group.start : group.stop], *(each.numpy() for each in played.shard.memory()[index])]


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("first", [0, 1])
def test_every_second_group_has_the_weights_memories_and_frames_that_it_has_among_all(kind: str, first: int) -> None:
    config = Config(**{"lr": 0.1, **SETTINGS[kind]})
    count = len(plan_for(config).groups)
    assert count > 2
    whole, part = Played(config, range(count)), Played(config, range(first, count, 2))
    mine = [each for each in whole.take(0, 3) if each.group in part.part.groups]
    assert part.take(0, 3) == mine
    whole.close()
    part.close()
    for index in range(count):
        if index not in part.part.groups:
            assert part.shard.memory()[index] == []
            continue
        pairs = list(zip(vectors(whole, index), vectors(part, index), strict=True))
        assert all(one.tobytes() == two.tobytes() for one, two in pairs) and len(pairs) > 1
    assert part.received() == [each for each in whole.received() if each[1] in part.part.groups]


@pytest.mark.parametrize("kind", ["dense", "Adam", "torch's", "averaged", "top-k, coded downlink"])
def test_a_part_goes_on_from_a_checkpoint_of_the_whole(kind: str, tmp_path: Path) -> None:
    config = Config(**{"lr": 0.1, **SETTINGS[kind]})
    count = len(plan_for(config).groups)
    whole, part = Played(config, range(count)), Played(config, range(1, count, 2))
    whole.take(0, 2)
    staged, state = StagedCheckpoint(tmp_path, 2), whole.shard.state()
    files = {checkpoint.MODEL: state.model, checkpoint.OPTIMIZER: state.optimizer, checkpoint.REPLICA: state.replica}
    for name, tensors in (*files.items(), (checkpoint.EMA, state.average)):
        if tensors or name == checkpoint.OPTIMIZER:
            staged.add_tensors(name, tensors)
    part.shard.take_up(Checkpoint.open(staged.publish({"workers": WORKERS})))
    whole.take(2, 4)
    part.take(2, 4)
    whole.close()
    part.close()
    for index in part.part.groups:
        pairs = zip(vectors(whole, index), vectors(part, index), strict=True)
        assert all(one.tobytes() == two.tobytes() for one, two in pairs)


def test_a_group_goes_to_the_ranks_of_its_own_route_that_follow() -> None:
    config = Config(scheme="dense", lr=0.1)
    count = len(plan_for(config).groups)
    readers = [(1, 2, 3) if group % 2 else (1, 3) for group in range(count)]
    played = Played(config, range(count), [Route(0, each) for each in readers])
    first = played.take(0, 1)
    played.shard.send_to([2, 3])
    second = played.take(1, 2)
    whole = played.shard.send_whole([2, 3], 2)  # to only 2 of the odd groups
    counted = {rank: played.flow_control.outstanding(rank) for rank in (1, 2, 3)}
    played.close()
    total = sum(event.nbytes for event in (*first, *second)) + whole
    got: dict[int, list[tuple[int, int]]] = {}
    taken = dict.fromkeys(counted, 0)
    for rank in (1, 2, 3):
        channel = FrameChannel(played.ends[rank])
        while (arrival := channel.inbox.poll()) is not None:
            frame = wire.unpack(arrival.data, job=0, source=0)  # type: ignore[attr-defined]
            got.setdefault(rank, []).append((frame.version, frame.group))
            taken[rank] += arrival.data.size  # type: ignore[attr-defined]
    odd, every = [group for group in range(count) if group % 2], list(range(count))
    assert sorted(got[1]) == [(1, group) for group in every]
    assert sorted(got[2]) == sorted((version, group) for version in (1, 2, 2) for group in odd)
    assert sorted(got[3]) == sorted((version, group) for version in (1, 2, 2) for group in every)
    assert taken == counted and sum(taken.values()) == total


def test_a_frame_of_a_group_that_the_shard_does_not_have_is_not_taken() -> None:
    part = Played(Config(scheme="dense", lr=0.1), [1])
    part.shard.admit([1, 2, 3], 0)
    part.shard.open(Round.after(0))
    assert not part.shard.offer(part.frame(1, 0, 0)) and part.shard.offer(part.frame(1, 0, 1))
    part.close()


def test_what_needs_all_groups_is_refused_for_some() -> None:
    with pytest.raises(ConfigurationError, match=r"--optimizer adafactor needs whole tensors, and \S+ is cut"):
        Played(Config(scheme="qsgd", lr=0.1, optimizer="adafactor"), [1])
