"""The messages at the end of a version: each worker is told only about its own last gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from psnode.config import Config
from psnode.errors import DeadlineExceededError
from psnode.exchange.flow_control import FlowControl
from psnode.exchange.shard.consistency import Synchronous
from psnode.exchange.shard.median_clipping import Clipped
from psnode.master.deadlines import AdaptiveTimeout, RoundTimer
from psnode.master.events import Events
from psnode.master.example_dealing import ExampleDealing
from psnode.master.job_state import JobState
from psnode.master.member_list import Members
from psnode.master.membership import Membership
from psnode.master.readmission import Readmission
from psnode.master.recorder import StepRecorder
from psnode.master.round_boundary import RoundBoundary
from psnode.protocol.channel import FrameChannel
from psnode.protocol.round import Round
from psnode.protocol.wire import Flag, Frame, Kind, unpack_factors, unpack_groups
from psnode.records.directory import claim
from psnode.records.generations import Generation
from psnode.transport.clock import Clock
from psnode.transport.loopback import loopback_group
from tests.exchange.shard.small import small_plan, small_shard
from tests.master.checkpoints.test_pending import bench

MUCH = 65 << 20  # bytes, above the limit of flow control
WORKERS = [1, 2, 3]
Told = dict[int, tuple[int, list[int], Flag]]  # by rank: step, unused groups and flags of VERSION_COMPLETE


class Ground:
    """The boundary of a kofn run of three workers and a spare, with rounds of `steps` steps; the test reads the ranks' ends."""

    def __init__(self, folder: Path, steps: int) -> None:
        self.steps, ends = steps, loopback_group(5)
        self.ends = {rank: FrameChannel(ends[rank]) for rank in (*WORKERS, 4)}
        link, clock, rule = FrameChannel(ends[0]), Clock(lambda: 0.0), Synchronous(2, backups=True)
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        config = Config(scheme="dense", train_dir=folder / "run", lr=0.1, batch_size=1, min_workers=1)
        self.plan = small_plan(model, config, "layer")
        self.flow_control = FlowControl(0)
        self.shard = small_shard(model, config, rule, link, recipients=tuple(self.ends), group_by="layer")
        self.job_state = JobState(clock, 60.0)
        self.members = Members(WORKERS, clock, [4])
        pending = bench(folder / "pending", rounds_go_on=True).pending
        recorder, events = StepRecorder(3, 10, 0), Events(folder)
        self.membership = Membership(
            self.members, self.flow_control, RoundTimer(AdaptiveTimeout(6.0, 20.0), clock), link, config, self.job_state, rule,
            self.shard, pending, recorder, events,
        )  # fmt: skip
        with claim(config) as run:
            pass
        dealing = ExampleDealing(config, 100, WORKERS, [Generation(0, 3)])
        self.readmission = Readmission(link, self.job_state, self.membership, self.shard, pending, recorder, dealing, events)
        self.boundary = RoundBoundary(
            link, run, self.job_state, self.membership, self.plan, rule, self.shard, pending, recorder, dealing, events,
            self.readmission,
        )  # fmt: skip

    def publish(self, version: int, left_out: dict[int, list[int]]) -> Told:
        """Publish `version`, whose round left out the groups `left_out` of each rank. Return the contents of
        VERSION_COMPLETE by rank.
        """
        self.job_state.round = Round.after(version, self.steps)
        self.readmission.catch_up()
        self.readmission.readmit()
        self.boundary.close(Flag.NONE, left_out)
        told: Told = {}
        self.others: list[tuple[int, Frame]] = []
        for rank, end in self.ends.items():
            while (frame := received(end)) is not None:
                if frame.kind is Kind.VERSION_COMPLETE:
                    assert frame.version == version and rank not in told
                    told[rank] = frame.step, unpack_groups(frame.body, len(self.plan.groups)), frame.flags
                else:
                    self.others.append((rank, frame))
        return told


def received(end: FrameChannel) -> Frame | None:
    try:
        frame = end.next(0)
    except DeadlineExceededError:
        return None
    assert isinstance(frame, Frame)
    return frame


@pytest.fixture(params=[1, 2], ids=lambda steps: f"{steps}-step rounds")
def ground(tmp_path: Path, request: pytest.FixtureRequest) -> Ground:
    return Ground(tmp_path, request.param)


def test_who_follows_is_told_of_the_round_that_made_the_version(ground: Ground) -> None:
    """Check that the spare is told of this round too. It has sent no gradient, and has no step of its own."""
    last, plain, spare = 6 * ground.steps, Flag.NONE, Flag.SPARE
    told = ground.publish(6, {1: [0], 2: [], 3: [0, 1]})
    assert told == {1: (last, [0], plain), 2: (last, [], plain), 3: (last, [0, 1], plain), 4: (last, [], spare)}
    assert ground.others == []


def test_who_was_held_is_told_of_its_own_last_round_when_it_is_back(ground: Ground) -> None:
    steps = ground.steps
    ground.flow_control.sent([3], MUCH)
    assert ground.publish(6, {1: [], 2: [], 3: [1]})[3] == (6 * steps, [1], Flag.NONE)
    asked = [(rank, frame.version, frame.flags) for rank, frame in ground.others if frame.kind is Kind.ASK]
    assert asked == [(3, 6, Flag.NONE), (3, 7, Flag.HOLD)]
    assert ground.membership.followers == [1, 2, 4]
    assert 3 not in ground.publish(7, {1: [], 2: [], 3: [0]})  # its gradient on version 6 lacked group 0
    assert 3 not in ground.publish(8, {1: [], 2: [], 3: [0, 1]})
    ground.membership.hear_answer(3, 7)
    told = ground.publish(9, {1: [1], 2: [], 3: [0, 1]})
    assert (told[1], told[3]) == ((9 * steps, [1], Flag.NONE), (7 * steps, [0], Flag.NONE))
    whole = [(rank, frame.group) for rank, frame in ground.others if frame.kind is Kind.WEIGHTS]
    assert sorted(whole) == [(3, group.index) for group in ground.plan.groups]
    assert ground.publish(10, {3: [1]})[3] == (10 * steps, [1], Flag.NONE)


def test_who_was_suspended_is_told_of_the_groups_of_its_last_step_when_it_is_back(ground: Ground) -> None:
    """Check a suspended worker that returns. The spare has taken its place by then, so that the worker now waits as a spare."""
    steps = ground.steps
    ground.members.remove(2)
    ground.members.suspend(2, {0: 5 * steps, 1: 4 * steps}, 5 * steps)
    told = ground.publish(6, {1: [], 3: []})
    assert 2 not in told and told[4] == (6 * steps, [], Flag.NONE)
    assert ground.members.live == {1, 3, 4}
    ground.members.hear(2)
    told = ground.publish(7, {1: [], 3: [], 4: [1]})
    assert told[2] == (5 * steps, [1], Flag.SPARE) and told[4] == (7 * steps, [1], Flag.NONE)


def test_factors_come_with_the_step_that_they_are_of_and_once(ground: Ground) -> None:
    steps, groups = ground.steps, len(ground.plan.groups)
    ground.boundary.clip(1, [Clipped(1, 5 * steps, 0.5)])
    ground.boundary.clip(0, [Clipped(1, 6 * steps, 0.25), Clipped(3, 6 * steps, 0.5)])
    ground.publish(6, {})
    told = {rank: (frame.step, unpack_factors(frame.body, groups)) for rank, frame in ground.others if frame.kind is Kind.CLIP}
    assert told == {1: (6 * steps, {0: 0.25}), 3: (6 * steps, {0: 0.5})}
    ground.publish(7, {})
    assert ground.others == []
