"""A shard by itself: gradients in, weights out, and a checkpoint in between, without a master or a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from psnode.config import Config
from psnode.errors import CheckpointError
from psnode.exchange.shard.consistency import Bounded, Rule, Synchronous
from psnode.exchange.shard.shard import Shard, ShardState
from psnode.exchange.shard.shard_events import GroupClosed
from psnode.protocol import wire
from psnode.protocol.channel import FrameChannel
from psnode.protocol.round import Round
from psnode.protocol.wire import Frame, Kind
from psnode.records import checkpoint
from psnode.records.checkpoint import Checkpoint
from psnode.records.history import AddedGradient
from psnode.records.staging import StagedCheckpoint
from psnode.transport.loopback import LoopbackTransport, loopback_group
from tests.exchange.shard.small import small_plan, small_shard

SECONDS = 60.0
Floats = npt.NDArray[np.float32]


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))


class Ground:
    """A shard on rank 0, and the ends of two workers, whose part the test plays."""

    def __init__(self, rule: Rule, rate: Any = lambda now: 0.1, **settings: Any) -> None:
        self.ends: list[LoopbackTransport] = loopback_group(3)
        self.link = FrameChannel(self.ends[0])
        config = Config(lr=0.1, **{"scheme": "dense", "momentum": 0.9, **settings})
        self.model = network()
        self.plan = small_plan(self.model, config, "layer")
        self.shard: Shard = small_shard(self.model, config, rule, self.link, rate, (1, 2), group_by="layer")

    def offer(self, rank: int, values: Floats, version: int) -> bool:
        """Offer `values`, in the plan's order, as the gradient of `rank`, group by group; return True if all are taken."""
        taken = [self.shard.offer(self._frame(rank, values, version, group.index)) for group in self.plan.groups]
        return all(taken)

    def _frame(self, rank: int, values: Floats, version: int, index: int, step: int | None = None) -> Frame:
        group = self.plan.groups[index]
        making = wire.GroupFrame(len(group.segments), 8 * group.size + 1024)
        for segment in group.segments:
            part = values[segment.start : segment.stop].reshape(segment.shape)
            making.take(get_codec(segment.codec).encode(part, Key.derive(0), out=making.room).nbytes)
        step = version + 1 if step is None else step
        sealed = making.seal(Kind.GRADIENT, sender=rank, job=0, group=index, step=step, version=version)
        return wire.unpack(sealed, job=0, source=rank)

    def closed(self) -> list[GroupClosed]:
        """Return the events of one version."""
        found = [self.link.next(SECONDS) for _ in self.plan.groups]
        assert all(isinstance(event, GroupClosed) for event in found), found
        return sorted(found)  # type: ignore[type-var]


@pytest.fixture
def make() -> Iterator[Any]:
    grounds: list[Ground] = []

    def new(*given: Any, **named: Any) -> Ground:
        grounds.append(Ground(*given, **named))
        return grounds[-1]

    yield new
    for ground in grounds:
        ground.shard.__exit__(None, None, None)


def gradients(ground: Ground, count: int) -> list[Floats]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(ground.plan.size).astype(np.float32) for _ in range(count)]


def by_torch(means: Sequence[Floats], rates: Sequence[float], plan: Any) -> dict[str, torch.Tensor]:
    """Return the weights that torch's SGD computes for the network from these mean gradients."""
    model = network()
    named = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for mean, rate in zip(means, rates, strict=True):
        for name, where in plan.slices().items():
            named[name].grad = torch.from_numpy(mean[where].copy()).view(named[name].shape)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    return {name: value.detach() for name, value in named.items()}


def test_versions_are_those_of_torchs_sgd_on_the_mean_gradient(make: Any) -> None:
    ground, rates = make(Synchronous(2), rate=lambda now: 0.1 / (1 + now.version)), [0.1, 0.05, 0.1 / 3]
    one, two = gradients(ground, 3), gradients(ground, 6)[3:]
    ground.shard.admit([1, 2], 0)
    for version in range(3):
        ground.shard.open(Round.after(version))
        assert ground.offer(2, two[version], version) and ground.offer(1, one[version], version)
        for event in ground.closed():
            assert event.version == version + 1
            assert [(added.rank, added.step) for added in event.added] == [(1, version + 1), (2, version + 1)]
    expected = by_torch([(a + b) / 2 for a, b in zip(one, two, strict=True)], rates, ground.plan)
    for name, value in ground.model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name])


def test_a_gradient_whose_step_does_not_end_the_round_on_its_version_is_not_taken(make: Any) -> None:
    """Check the steps of gradients for two rounds of two steps on versions 3 and 4 (steps 4 and 5, then 6 and 7): only
    gradients of step 5, then 7, are taken.
    """
    rates = {3: 0.4, 4: 0.2}
    ground = make(Bounded(None), rate=lambda now: rates[now.version])
    [values] = gradients(ground, 1)
    ground.shard.admit([1, 2], 3)
    for version, step in ((3, 5), (4, 7)):
        ground.shard.open(Round(version, step - 1, 2))
        frames = [ground._frame(1, values, version, group.index, step) for group in ground.plan.groups]
        for wrong in (version + 1, step - 1, step + 1):
            assert not ground.shard.offer(ground._frame(1, values, version, 0, wrong))
            assert not ground.shard.keep(ground._frame(2, values, version, 0, wrong))
        assert all(ground.shard.offer(frame) for frame in frames)
        for event in ground.closed():
            assert event.version == version + 1
            assert event.added == (AddedGradient(1, step, version),)
    assert ground.shard.withdraw(1) == {group.index: 7 for group in ground.plan.groups}
    assert ground.shard.withdraw(2) == {group.index: 3 for group in ground.plan.groups}
    total = by_torch([values, values], [rates[3], rates[4]], ground.plan)
    for name, value in ground.model.named_parameters():
        torch.testing.assert_close(value.detach(), total[name])


def test_every_recipient_gets_frames_of_this_rank_and_nobody_else_does(make: Any) -> None:
    ground = make(Synchronous(1))
    ground.shard.send_to([2])
    ground.shard.admit([1], 0)
    ground.shard.open(Round.after(0))
    assert ground.offer(1, gradients(ground, 1)[0], 0)
    sent = sum(event.nbytes for event in ground.closed())
    workers = {rank: FrameChannel(ground.ends[rank]) for rank in (1, 2)}
    frames = [workers[2].next(SECONDS) for _ in ground.plan.groups]
    assert workers[1].inbox.poll() is None
    assert sent == sum(wire.HEADER_BYTES + frame.body.size for frame in frames)
    assert {(frame.kind, frame.sender, frame.version) for frame in frames} == {(Kind.WEIGHTS, 0, 1)}
    assert ground.shard.send_whole([1], 1) == sent
    assert sum(wire.HEADER_BYTES + workers[1].next(SECONDS).body.size for _ in frames) == sent


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"optimizer": "adam"},
        {"downlink": "topk:ratio=0.2"},
        {"downlink": "topk:ratio=0.2", "downlink_lead": 0.7},
    ],
)
def test_a_shard_that_goes_on_from_a_checkpoint_is_the_one_that_never_stopped(
    make: Any, tmp_path: Path, settings: dict[str, Any]
) -> None:
    ground, back = make(Synchronous(1), **settings), make(Synchronous(1), **settings)
    pushes = gradients(ground, 4)

    def steps(shard: Ground, first: int, last: int) -> None:
        shard.shard.admit([1], first)
        for version in range(first, last):
            shard.shard.open(Round.after(version))
            assert shard.offer(1, pushes[version], version)
            shard.closed()

    steps(ground, 0, 2)
    state = copied(ground.shard.state())
    steps(ground, 2, 4)
    staged = StagedCheckpoint(tmp_path, 2)
    staged.add_tensors(checkpoint.MODEL, state.model)
    staged.add_tensors(checkpoint.OPTIMIZER, state.optimizer)
    assert bool(state.replica) == ("downlink" in settings)
    if state.replica:
        staged.add_tensors(checkpoint.REPLICA, state.replica)
    back.shard.take_up(Checkpoint.open(staged.publish({"workers": 1})))
    steps(back, 2, 4)
    assert back.shard.digest() == ground.shard.digest()
    assert back.shard.replica.tobytes() == ground.shard.replica.tobytes()


@pytest.mark.parametrize("lead", [0.0, 0.5, 2.0])
def test_weights_go_down_ahead_of_the_masters_by_so_many_times_the_last_change(make: Any, lead: float) -> None:
    """Check that the sent weights are the master's plus `lead` times their last change. Values are multiples of 2^-12 below
    1/2, which float16 represents exactly.
    """
    ground = make(Synchronous(1), downlink="fp16", downlink_lead=lead, momentum=0.0, rate=lambda now: 0.25)
    with torch.no_grad():
        for value in ground.model.parameters():
            value.copy_(torch.round(64 * value) / 64)
    ground.shard.replica[:] = np.round(64 * ground.shard.replica) / 64
    x = ground.shard.replica.copy()
    ground.shard.admit([1], 0)
    for version in range(3):
        gradient = np.full(x.size, (version + 1) / 64, np.float32)
        ground.shard.open(Round.after(version))
        assert ground.offer(1, gradient, version)
        ground.closed()
        x, before = x - np.float32(0.25) * gradient, x
        np.testing.assert_array_equal(ground.shard.replica, x + np.float32(lead) * (x - before))
    ground.shard.open(Round.after(3))
    ground.shard.force()
    ground.closed()
    np.testing.assert_array_equal(ground.shard.replica, x)


def copied(state: ShardState) -> ShardState:
    """Return a state with the same values in new memory."""
    return ShardState(*({name: value.clone() for name, value in tensors.items()} for tensors in state))


def test_a_checkpoint_of_another_network_is_refused(make: Any, tmp_path: Path) -> None:
    staged = StagedCheckpoint(tmp_path, 2)
    staged.add_tensors(checkpoint.MODEL, {"0.weight": torch.zeros(4, 6)})
    staged.add_tensors(checkpoint.OPTIMIZER, {})
    with pytest.raises(CheckpointError, match="does not fit this network"):
        make(Synchronous(1)).shard.take_up(Checkpoint.open(staged.publish({"workers": 1})))


def test_a_gradient_behind_the_last_round_waits_in_a_checkpoint_and_is_applied_after_it(make: Any, tmp_path: Path) -> None:
    ground, back = make(Bounded(None)), make(Bounded(None))
    early, late = gradients(ground, 2)
    ground.shard.admit([1, 2], 0)
    ground.shard.open(Round.after(0))
    assert ground.offer(1, early, 0)
    ground.closed()
    state = copied(ground.shard.state())
    for index in range(len(ground.plan.groups)):
        assert ground.shard.keep(ground._frame(2, late, 0, index))
    staged = StagedCheckpoint(tmp_path, 1)
    staged.add_tensors(checkpoint.MODEL, state.model)
    staged.add_tensors(checkpoint.OPTIMIZER, state.optimizer)
    staged.add_tensors(checkpoint.WAITING, ground.shard.waiting())
    back.shard.take_up(Checkpoint.open(staged.publish({"workers": 2})))
    back.shard.admit([1], 1)
    back.shard.open(Round.after(1))
    assert [[added.rank for added in event.added] for event in back.closed()] == [[2]] * len(back.plan.groups)
    expected = by_torch([early, late], [0.1, 0.1], ground.plan)
    for name, value in back.model.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name])


def test_a_stale_push_in_units_of_weights_counts_by_the_rate_that_it_was_computed_with(make: Any) -> None:
    """Check that a push computed on version 0 at rate .4 counts twice in a step at rate .2: under ef:rescale pushes are in
    units of weights.

    Whole numbers are exact in float16.
    """
    rates = {0: 0.4, 1: 0.2}
    ground = make(Bounded(None), rate=lambda now: rates[now.version], feedback="ef:rescale=true", codec="fp16", momentum=0.0)
    first, stale = (np.rint(gradient) for gradient in gradients(ground, 2))
    ground.shard.admit([1, 2], 0)
    ground.shard.open(Round.after(0))
    assert ground.offer(1, first, 0)
    ground.closed()
    before = ground.shard.replica.copy()
    ground.shard.open(Round.after(1))
    assert ground.offer(2, stale, 0)
    ground.closed()
    np.testing.assert_allclose(ground.shard.replica, before - np.float32(0.2) * 2 * stale, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("estimate", ["previous", "exact"])
def test_a_group_waits_for_the_others_if_it_is_clipped_by_their_norm_and_not_by_that_of_the_version_before(
    make: Any, estimate: str
) -> None:
    ground = make(Synchronous(1), clip_grad_norm=0.5, clip_estimate=estimate, momentum=0.0)
    ones = np.ones(ground.plan.size, np.float32)
    ground.shard.admit([1], 0)
    for version, size in enumerate((1.0, 4.0)):
        ground.shard.open(Round.after(version))
        assert ground.offer(1, np.float32(size) * ones, version)
        ground.closed()
        assert ground.shard.gradient_norm == pytest.approx(size * ones.size**0.5)
    before = ground.shard.replica.copy()
    ground.shard.open(Round.after(2))
    assert ground.shard.offer(ground._frame(1, 2 * ones, 2, 0))
    ground.shard.__exit__(None, None, None)  # all work that can be done is done
    moved = before - ground.shard.replica
    assert (ground.link.inbox.poll() is not None) == (estimate == "previous")
    expected = 0.1 * 2 * 0.5 / (4 * ones.size**0.5) if estimate == "previous" else 0.0
    group = ground.plan.groups[0]
    np.testing.assert_allclose(moved[group.start : group.stop], expected, rtol=1e-4, atol=1e-7)


def test_a_version_without_a_gradient_tells_no_norm_of_the_next_one(make: Any) -> None:
    ground = make(Synchronous(1), clip_grad_norm=0.5, clip_estimate="previous", momentum=0.0)
    ones = np.ones(ground.plan.size, np.float32)
    ground.shard.admit([1], 0)
    ground.shard.open(Round.after(0))
    ground.offer(1, ones, 0)
    ground.closed()
    estimate = ground.shard.facts()
    ground.shard.open(Round.after(1))
    ground.shard.force()
    ground.closed()
    assert ground.shard.gradient_norm == 0
    assert ground.shard.facts() == estimate == {"gradient_norm": pytest.approx(ones.size**0.5)}


@pytest.mark.parametrize("norm", [-1.0, [1.0], "large", True])
def test_a_norm_in_a_manifest_that_is_none_is_refused(make: Any, tmp_path: Path, norm: object) -> None:
    ground = make(Synchronous(1), clip_grad_norm=0.5, clip_estimate="previous")
    state = ground.shard.state()
    staged = StagedCheckpoint(tmp_path, 2)
    staged.add_tensors(checkpoint.MODEL, state.model)
    staged.add_tensors(checkpoint.OPTIMIZER, state.optimizer)
    with pytest.raises(CheckpointError, match="no norm"):
        ground.shard.take_up(Checkpoint.open(staged.publish({"workers": 1, "gradient_norm": norm})))
