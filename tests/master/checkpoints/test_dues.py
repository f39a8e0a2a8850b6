"""The choice of the versions that get a checkpoint: --eval-freq, --checkpoint-minutes, and the end."""

from __future__ import annotations

import pytest

from psnode.config import Config
from psnode.master.checkpoints.dues import CheckpointDues
from psnode.protocol.round import Round
from psnode.transport.clock import Clock


def due(config: Config, seconds: list[float], steps: int = 1, rounds: int = 12) -> list[int]:
    """Return those of the first `rounds` versions that are due, if a round takes 25 s."""
    dues, found = CheckpointDues(config, Clock(lambda: seconds[0])), []
    for version in range(rounds):
        seconds[0] += 25.0
        if dues.is_due(Round.after(version, steps), last=version == rounds - 1):
            found.append(version + 1)
    return found


@pytest.mark.parametrize(
    ("every", "minutes", "steps", "expected"),
    [
        (5, 0.0, 1, [5, 10, 12]),
        (0, 0.0, 1, [12]),
        (5, 0.0, 2, [3, 5, 8, 10, 12]),  # the rounds in which the steps 5, 10, 15 and 20 are taken, and the last
        (0, 2.0, 1, [5, 10, 12]),  # the first round that ends 120 s or more after the last checkpoint
        (7, 2.0, 1, [5, 7, 12]),
    ],
)
def test_versions_are_due_by_steps_by_minutes_and_at_the_end(every: int, minutes: float, steps: int, expected: list[int]) -> None:
    assert due(Config(eval_freq=every, checkpoint_minutes=minutes), [1000.0], steps) == expected
