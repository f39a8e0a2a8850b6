"""A stop under ssp or asp keeps the count of applied gradients and the positions in the data."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from psnode.exchange.shard.consistency import Bounded, Synchronous
from psnode.master.example_dealing import Applied, applied_before
from psnode.records.checkpoint import Checkpoint
from psnode.records.staging import StagedCheckpoint
from psnode.tasks.data.sampler import Sampler


def test_a_gradient_counts_once_also_across_a_stop(tmp_path: Path) -> None:
    """Check a gradient of three groups, one of which is applied before a stop and two after it."""
    rule = Bounded(None)
    before = applied_before(rule, None)
    assert before is not None
    before.add({(1, 1), (2, 1)})
    before.add({(1, 1), (1, 3)})
    draft = StagedCheckpoint(tmp_path, 2)
    draft.add("x", b"")
    found = Checkpoint.open(draft.publish({"workers": 2, **before.facts()}))
    behind = applied_before(rule, found)
    assert behind is not None and behind.gradients == 3
    behind.add({(1, 3), (2, 2)})
    assert behind.gradients == 4
    assert applied_before(Synchronous(1, backups=True), found) is None


def test_a_run_that_did_not_count_does_not_begin_to(tmp_path: Path) -> None:
    draft = StagedCheckpoint(tmp_path, 2)
    draft.add("x", b"")
    assert applied_before(Bounded(1), Checkpoint.open(draft.publish({"workers": 2}))) is None
    assert Applied().facts() == {"applied": {"gradients": 0, "newest": {}}}


@given(st.integers(0, 200), st.integers(1, 6), st.integers(1, 6), st.integers(20, 90), st.integers(-5, 5))
def test_a_place_among_others_leaves_out_less_than_a_step_and_repeats_nothing(
    place: int, before: int, now: int, length: int, epoch_offset: int
) -> None:
    """Check the position in the data after a change in the number of workers: no example of the epoch is taken again, and
    less than a step of examples is left out. Near its end, the rest of the epoch may be left out.
    """
    batch = 3
    finished = Sampler(length, 0, now, batch, sample_offset=epoch_offset).finished(place, before)
    epoch, within = divmod(place, length // (before * batch))
    taken = within * before * batch
    an_epoch = length // (now * batch)
    next_epoch, next_within = divmod(finished + epoch_offset, an_epoch)
    if (next_epoch, next_within) == (epoch + 1, 0):
        assert length - taken < (now + before) * batch + now * batch
    else:
        assert next_epoch == epoch
        assert taken <= next_within * now * batch < taken + now * batch
    assert before != now or finished + epoch_offset == place
