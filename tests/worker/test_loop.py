"""The worker's loop without a model: the test gives the gradient of each round, and plays the master."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.exchange.replica import Replica
from psnode.exchange.sender import GradientSender
from psnode.exchange.shard.consistency import Synchronous
from psnode.exchange.trained_model import TrainedModel
from psnode.exchange.weights_receiver import Receiver
from psnode.plans.coding import Coding
from psnode.protocol import wire
from psnode.protocol.channel import FrameChannel
from psnode.protocol.messages import Report, Start
from psnode.protocol.wire import Flag, Frame, Kind
from psnode.records.timeline import Tracer
from psnode.tasks.data.sampler import Sampler
from psnode.transport.loopback import loopback_group
from psnode.worker.computation import Computation, Outcome
from psnode.worker.data_share import DataShare
from psnode.worker.training_loop import Passes, Worker
from tests.exchange.given import Given
from tests.exchange.shard.small import small_plan

EXAMPLES, BATCH, SECONDS = 40, 4, 300.0
IDENTITY = get_codec("identity")


class Batches:
    """Batches in which every example is the number of the step that takes the batch."""

    def __init__(self) -> None:
        self.step = 0

    def __next__(self) -> list[Any]:
        self.step += 1
        return [[self.step] * BATCH]

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Source(Given):
    """The gradient of a round. `cleared`: the number of times that the loop has reported that it was sent."""

    cleared = 0

    def clear(self) -> None:
        self.cleared += 1


class Ground:
    """A worker of rank 1 in a run of `last_step` steps, with `steps` steps per round, and the master's end of its link."""

    def __init__(self, steps: int, last_step: int) -> None:
        config = Config(scheme="dense", lr=0.1, batch_size=BATCH, hash_every=0)
        net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        self.plan = plan = small_plan(net, config, "layer")
        self.master, link = (FrameChannel(end) for end in loopback_group(2))
        self.source, coding = Source(np.zeros(plan.size, np.float32)), Coding(plan, resolve(config))
        model = TrainedModel(net, plan, torch.device("cpu"))
        self.replica, tracer = Replica(model.vector), Tracer(1, enabled=False)
        targets = [0] * len(plan.groups)
        self.rates: list[int] = []
        sender = GradientSender(coding, link, [[root] for root in targets], self.source, seed=1, lr=self._rate, steps_per_epoch=5)  # type: ignore[arg-type]
        self.returned: list[tuple[int, list[int]]] = []
        receiver = Receiver(
            link, plan, self.replica, targets, None, tracer, SECONDS,
            lambda step, groups: self.returned.append((step, list(groups))), lambda step, factors: None,
        )  # fmt: skip
        task: Any = SimpleNamespace(size=len)
        nothing: Any = SimpleNamespace(close=lambda: None, remove=lambda: None)
        self.worker = Worker(
            link=link,
            config=config,
            rule=Synchronous(1),
            plan=plan,
            start=Start(plan.to_dict(), 0, 0, last_step, 5, None, False, weights_follow=False),
            model=model,
            replica=self.replica,
            gradients=self.source,  # type: ignore[arg-type]
            receiver=receiver,
            first_use=None,
            sender=sender,
            checkpoint_parts=nothing,
            hooks=nothing,
            computation=Computation(task, net, torch.device("cpu"), rank=1, seed=1, torch_lock=nullcontext(), weight_unit=BATCH),
            share=DataShare(Sampler(EXAMPLES, 0, 1, BATCH), Batches(), 0),
            deal=lambda deal, finished, before: pytest.fail("nothing is dealt"),
            tracer=tracer,
            steps_per_round=steps,
        )
        receiver.assume(0)

    def _rate(self, step: int) -> float:
        self.rates.append(step)
        return 0.1

    def publish(
        self, version: int, step: int, weights: np.ndarray, flags: Flag = Flag.NONE, unused: tuple[int, ...] = ()
    ) -> None:
        """Send `version` of the weights, made from the gradient of `step` without its groups `unused`."""
        for group in self.plan.groups:
            frame = wire.GroupFrame(1, wire.padded(IDENTITY.max_nbytes((group.size,))))
            frame.take(IDENTITY.encode(weights[group.start : group.stop], Key.derive(0), out=frame.room).nbytes)
            sealed = frame.seal(Kind.WEIGHTS, sender=0, job=0, group=group.index, step=version, version=version)
            self.master.send_frame(1, sealed)
        body = wire.pack_groups(unused, len(self.plan.groups))
        self.master.send(1, Kind.VERSION_COMPLETE, body, step=step, version=version, flags=flags)

    def heard(self, kind: Kind, count: int) -> list[Frame]:
        """Return the next `count` frames at the master's end, and check that they have this kind."""
        found = [self.master.next(SECONDS) for _ in range(count)]
        assert all(isinstance(frame, Frame) and frame.kind is kind for frame in found)
        return found  # type: ignore[return-value]

    def send(self, gradient: np.ndarray) -> None:
        """Push all groups of `gradient`, as hooks do during the last backward pass of a round."""
        self.source.vector[:] = gradient
        for group in self.plan.groups:
            self.worker.sender.push(group.index)


@pytest.fixture
def made() -> Iterator[list[Ground]]:
    found: list[Ground] = []
    yield found
    for ground in found:
        ground.worker.close()


def gradient_of(frames: list[Frame], ground: Ground) -> tuple[np.ndarray, set[int]]:
    """Return the gradient in the frames of all groups, and the weights that they state."""
    found, weights = np.empty(ground.plan.size, np.float32), set()
    for frame in frames:
        group = ground.plan.groups[frame.group]
        *parts, weight = wire.split_group(frame.body, len(group.segments) + 1)
        weights.add(wire.unpack_weight(weight))
        for segment, part in zip(group.segments, parts, strict=True):
            found[segment.start : segment.stop] = get_codec(segment.codec).decode(Payload.from_bytes(part)).reshape(-1)
    return found, weights


def take(passes: Passes, step: int, *, sends: bool) -> None:
    assert (passes.step, passes.batches, passes.sends) == (step, [[step] * BATCH], sends)
    assert passes.settled()


def test_a_round_of_two_steps_sends_one_gradient_and_one_report(made: list[Ground]) -> None:
    made.append(ground := Ground(steps=2, last_step=4))
    groups, generator = len(ground.plan.groups), np.random.default_rng(3)
    steps = ground.worker.steps()
    passes = next(steps)
    for version, flags in ((0, Flag.NONE), (1, Flag.STOP)):
        first, last = 2 * version + 1, 2 * version + 2
        take(passes, first, sends=False)
        passes = steps.send(Outcome(3.0, BATCH, {"top1": 1.0}, 0.5))
        take(passes, last, sends=True)
        assert ground.source.cleared == version
        gradient, weights = generator.standard_normal((2, ground.plan.size)).astype(np.float32)
        ground.send(gradient)
        frames = ground.heard(Kind.GRADIENT, groups)
        assert {(frame.step, frame.version) for frame in frames} == {(last, version)}
        sent, counts = gradient_of(frames, ground)
        np.testing.assert_array_equal(sent, gradient)
        assert counts == {2 * BATCH}  # the examples of both steps
        ground.publish(version + 1, last, weights, flags, unused=(1,))
        outcome = Outcome(1.0, BATCH, {"top1": 2.0}, 0.25)
        if flags:
            with pytest.raises(StopIteration):
                steps.send(outcome)
        else:
            passes = steps.send(outcome)
        [frame] = ground.heard(Kind.REPORT, 1)
        report = Report.from_bytes(frame.body)
        assert (frame.step, frame.version, report.loss, report.samples) == (last, version, 2.0, 2 * BATCH)
        assert report.metrics == {"top1": 3.0} and (report.memory > 0) == (version == 1)
        np.testing.assert_array_equal(ground.replica.weights, weights)
    assert ground.returned == [(2, [1]), (4, [1])]
    assert ground.worker.share.place == 4 and ground.source.cleared == 2


def test_a_gradient_has_the_learning_rate_of_its_rounds_first_step(made: list[Ground]) -> None:
    """Check that a gradient has the rate of its round's first step. The schedule counts from 0; a memory without a recorded
    unit is rescaled from the previous round's rate.
    """
    made.append(ground := Ground(steps=3, last_step=6))
    steps, weights = ground.worker.steps(), np.zeros(ground.plan.size, np.float32)
    passes = next(steps)
    for version in (0, 1):
        for step in range(3 * version + 1, 3 * version + 3):
            take(passes, step, sends=False)
            passes = steps.send(Outcome(1.0, BATCH, {}, 0.0))
        take(passes, 3 * version + 3, sends=True)
        ground.send(weights)
        if version == 0:
            assert ground.rates == [0]
            ground.publish(1, 3, weights)
            passes = steps.send(Outcome(1.0, BATCH, {}, 0.0))
    assert ground.rates == [0, 3, 0]
