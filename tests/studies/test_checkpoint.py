"""Figures of checkpoints, computed from the times at which steps begin."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

from psnode.errors import ConfigurationError
from studies.checkpoint import Options, figures, measure


def test_the_hold_up_is_what_the_two_steps_around_a_checkpoint_take_more_than_two_usual_ones() -> None:
    """Check steps of 1 s: the checkpoint of step 8 adds .2 s to this step, and .1 s to each of the next three."""
    seconds = [5.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.2, 1.1, 1.1, 1.1, 1.0, 1.0, 1.0]
    times = [0.0, *accumulate(seconds)]
    usual, [found] = figures(times, {8: (times[10] + 0.5, 777)})
    assert usual == pytest.approx(1.0)
    assert found.step == 8 and found.nbytes == 777
    assert found.holdup == pytest.approx(0.3)
    assert found.slowdown == pytest.approx(0.1)
    assert found.published == pytest.approx(times[10] + 0.5 - times[7])


def test_a_checkpoint_that_is_written_at_once_slows_no_step_down() -> None:
    times = [float(step) for step in range(20)]
    _, [found] = figures(times, {10: (times[10] + 0.5, 1)})
    assert found.slowdown is None and found.holdup == pytest.approx(0.0)


def test_what_cannot_be_measured_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--every 5 leaves no usual steps"):
        measure(Options(model="tiny", every=5))
    with pytest.raises(ConfigurationError, match="no checkout of psnode"):
        measure(Options(model="tiny", every=6, checkout=tmp_path))
