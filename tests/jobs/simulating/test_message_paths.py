"""Messages of a worker arrive in the order in which they were sent."""

from __future__ import annotations

import pytest

from psnode.jobs.planning.profile import HostCosts
from psnode.jobs.planning.scenario import Scenario
from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.message_paths import MessagePaths


@pytest.mark.parametrize("upward", [True, False])
@pytest.mark.parametrize("rate", [None, 8e9])
def test_a_control_message_does_not_overtake_a_frame(upward: bool, rate: float | None) -> None:
    """Check that a control message, which takes no time, arrives after a frame of 10 MB that was sent before it and takes
    the threads of both ends 0.1 s.
    """
    loop, heard = EventLoop(), list[tuple[str, float]]()
    paths = MessagePaths(loop, Scenario(2, rate, 0.02, 4), HostCosts(1e-8, 1e-8, 0.0, 0.0, 4, 1.0))

    def hear(name: str) -> None:
        heard.append((name, loop.now))

    if upward:
        paths.up(1, 10_000_000, hear, "frame")
        paths.answer(1, 0.0, hear, "control")
        paths.answer(2, 0.0, hear, "another worker's")
    else:
        paths.down(1, 10_000_000, hear, "frame")
        paths.tell(1, hear, "control")
        paths.tell(2, hear, "another worker's")
    loop.run()
    assert [name for name, _ in heard] == ["another worker's", "frame", "control"]
    assert [time for _, time in heard] == pytest.approx([0.01, 0.11, 0.11])
