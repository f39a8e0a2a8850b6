"""Accounting: one record per step, written when everything about the step is known, without lost bytes."""

from __future__ import annotations

from collections import Counter

import pytest

from psnode.exchange.stopwatch import Stopwatch
from psnode.master.recorder import StepRecorder
from psnode.protocol.channel import ControlBytes
from psnode.protocol.messages import Report


def report(loss: float = 1.0, samples: int = 8, **metrics: float) -> Report:
    return Report(loss, samples, dict(metrics), 0.1, 0.2, 0.3, None, None)


def test_a_record_is_due_when_the_round_is_closed_and_every_report_is_in() -> None:
    recorder = StepRecorder(workers=2, steps_per_epoch=10, step=0)
    recorder.report(1, 1, report(loss=1.0, top1=2.0))
    assert list(recorder.due()) == []
    recorder.close(1, 0.1, {(1, 1), (2, 1)}, {"decode": 0.5})
    assert list(recorder.due()) == []
    recorder.report(1, 2, report(loss=3.0, top1=6.0))
    [record] = recorder.due()
    assert (record.step, record.loss, record.epoch, record.contributing) == (1, 2.0, 0.1, 2)
    assert record.metrics == {"top1": 0.5}
    assert record.seconds.decode == 0.5
    assert record.seconds.encode == pytest.approx(0.2)
    assert list(recorder.due()) == []


def test_records_come_in_order_even_if_a_later_step_is_complete_first() -> None:
    recorder = StepRecorder(workers=1, steps_per_epoch=10, step=4)
    recorder.close(6, 0.1, {(1, 6)}, {})
    recorder.report(6, 1, report())
    assert list(recorder.due()) == []
    recorder.close(5, 0.1, {(1, 5)}, {})
    recorder.report(5, 1, report())
    assert [record.step for record in recorder.due()] == [5, 6]


def test_every_byte_is_in_exactly_one_record() -> None:
    control = Counter[str](received=3, sent=5)  # bytes of the start
    recorder = StepRecorder(
        workers=1, steps_per_epoch=10, step=0, control=lambda: ControlBytes(control["received"], control["sent"])
    )
    beside = []
    recorder.up(1)
    recorder.down(2)
    seen_up = seen_down = 0
    for step in (1, 2, 3):
        recorder.up(10 * step, step)
        recorder.up(1000, step + 1)  # frames of the next round may arrive before this step's last report
        recorder.down(20 * step, step)
        recorder.close(step, 0.1, {(1, step)}, {})
        recorder.report(step, 1, report())
        for record in recorder.due():
            seen_up += record.uplink_bytes
            seen_down += record.downlink_bytes
            beside.append((record.uplink_control_bytes, record.downlink_control_bytes))
        control["received"] += 100 * step
        control["sent"] += 200
        recorder.up(7, step)  # late: the record of this step is already written
    assert seen_up == 1 + 10 * (1 + 2 + 3) + 1000 * 2 + 7 * 2
    assert seen_down == 2 + 20 * (1 + 2 + 3)
    assert beside == [(3, 5), (100, 200), (200, 200)]


def test_a_record_waits_for_the_report_of_a_worker_that_left_its_gradient_out() -> None:
    """Check a worker that skipped its step: some of its frames may have been sent earlier, and this record counts them,
    whenever the report arrives.
    """
    recorder = StepRecorder(workers=2, steps_per_epoch=10, step=0)
    recorder.skipped(1, 2)
    recorder.report(1, 1, report(loss=1.0))
    recorder.up(10, 1)
    recorder.close(1, 0.1, {(1, 1)}, {})
    assert list(recorder.due()) == []
    recorder.up(4, 1)
    recorder.report(1, 2, report(loss=9.0))
    [record] = recorder.due()
    assert (record.uplink_bytes, record.loss, record.contributing) == (14, 1.0, 1)
    recorder.skipped(1, 2)  # reported again, after the record
    recorder.skipped(2, 2)
    recorder.report(2, 1, report())
    recorder.close(2, 0.1, {(1, 2)}, {})
    recorder.lost(2)
    assert [record.step for record in recorder.due()] == [2]


def test_a_late_report_is_ignored() -> None:
    recorder = StepRecorder(workers=1, steps_per_epoch=10, step=7)
    recorder.report(3, 1, report())
    recorder.close(8, 0.1, {(1, 8)}, {})
    recorder.report(8, 1, report(loss=5.0))
    [record] = recorder.due()
    assert record.loss == 5.0


def test_a_record_does_not_wait_for_the_report_of_a_lost_worker() -> None:
    recorder = StepRecorder(workers=2, steps_per_epoch=10, step=0)
    recorder.close(1, 0.1, {(1, 1), (2, 1)}, {})
    recorder.report(1, 2, report(loss=4.0))
    assert list(recorder.due()) == []
    recorder.lost(1)
    [record] = recorder.due()
    assert (record.loss, record.contributing) == (4.0, 2)
    recorder.close(2, 0.1, {(2, 2)}, {})
    recorder.lost(2)
    [record] = recorder.due()
    assert record.loss == 4.0  # the last known loss


def test_the_stopwatch_adds_up_by_name_and_starts_afresh() -> None:
    watch = Stopwatch()
    with watch.timing("decode"):
        pass
    with watch.timing("decode"):
        pass
    with watch.timing("update"):
        pass
    taken = watch.take()
    assert set(taken) == {"decode", "update"}
    assert all(value >= 0 for value in taken.values())
    assert watch.take() == {}


@pytest.mark.parametrize(("early", "known"), [(64, True), (65, False)])
def test_of_reports_that_come_early_64_are_kept(early: int, known: bool) -> None:
    """Check the record of step 1 after 64 or 65 early reports of a worker: the 65th pushes out its report of step 1, for
    which the record then waits.
    """
    recorder = StepRecorder(workers=2, steps_per_epoch=10, step=0)
    for step in range(1, early + 1):
        recorder.report(step, 1, report(loss=1.0))
    recorder.report(1, 2, report(loss=3.0))
    recorder.close(1, 0.1, {(1, 1), (2, 1)}, {})
    assert [record.loss for record in recorder.due()] == ([2.0] if known else [])


def test_a_round_of_several_steps_has_one_record_under_its_last_step() -> None:
    recorder = StepRecorder(workers=2, steps_per_epoch=10, step=6, steps=3)
    for last in (9, 12):
        for rank in (1, 2):
            recorder.report(last, rank, report())
    recorder.excuse(2, 12)
    recorder.down(100, 9)
    recorder.close(9, 0.1, {(1, 9), (2, 9)}, {})
    recorder.close(12, 0.1, {(1, 12), (2, 12)}, {})
    found = list(recorder.due())
    assert [(record.step, record.epoch, record.downlink_bytes) for record in found] == [(9, 0.9, 100), (12, 1.2, 0)]


def test_a_report_that_is_excused_up_to_a_round_is_not_waited_for_in_any_round_before() -> None:
    recorder = StepRecorder(workers=1, steps_per_epoch=10, step=0, steps=2)
    recorder.excuse(1, 4)
    for last in (2, 4, 6):
        recorder.close(last, 0.1, {(1, last)}, {})
    assert [record.step for record in recorder.due()] == [2, 4]
