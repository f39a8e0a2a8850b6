"""Trial steps are not taken where they would harm, and a request to stop ends them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from psnode.config import Config
from psnode.errors import StoppedError
from psnode.master.start.planned import _no_choice
from psnode.master.start.startup import raise_if_stopped
from psnode.protocol.channel import FrameChannel, StopRequest
from psnode.protocol.messages import Ready
from psnode.protocol.wire import Kind
from psnode.records.directory import ResumePoint, RunDirectory
from psnode.transport.loopback import loopback_group


def run(resumed: Config | None = None, **settings: Any) -> RunDirectory:
    found: Any = SimpleNamespace(config=Config(plan="auto", **settings), resume_point=ResumePoint(config=resumed))
    return cast(RunDirectory, found)


@pytest.mark.parametrize(
    ("found", "streams", "reason"),
    [
        (run(), False, ""),
        (run(Config()), False, "a resumed run keeps it"),
        (run(local=2), False, "take turns"),
        (run(), True, "an iterable data set"),
    ],
)
def test_the_scheme_stays_where_trial_steps_would_harm(found: RunDirectory, streams: bool, reason: str) -> None:
    ready = {1: Ready([], None, 8, False), 2: Ready([], None, 8, False, streams=streams)}
    assert reason in _no_choice(found, ready)
    assert bool(_no_choice(found, ready)) == bool(reason)


@pytest.mark.parametrize("by_worker", [False, True])
def test_a_request_to_stop_ends_the_trials_and_other_events_stay(by_worker: bool) -> None:
    master, worker = map(FrameChannel, loopback_group(2))
    worker.send(0, Kind.PROBE)
    kept = master.expect(Kind.PROBE, 5)
    master.inbox.put_back([kept])
    raise_if_stopped(master, run())
    assert master.inbox.poll() is kept
    request: object = StopRequest("SIGTERM")
    if by_worker:
        worker.send(0, Kind.STOP_REQUEST, b"SIGTERM")
        request = master.expect(Kind.STOP_REQUEST, 5)
    master.inbox.put_back([kept, request])
    with pytest.raises(StoppedError, match="SIGTERM"):
        raise_if_stopped(master, run())
    assert master.inbox.poll() is kept
