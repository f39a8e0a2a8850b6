"""scripts/signals.py: the seed determines the schedule, and only outcomes that the pages describe pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts")]
import signal_schedules as schedules  # noqa: E402
import signals  # noqa: E402
from signal_schedules import EARLY, STEPS, Act, Outcome, Part, Schedule  # noqa: E402

STOP, INTERRUPT = Act(9, "TERM", "launcher"), Act(9, "INT", "worker 1")
MASTER, LAUNCHER, WORKER = Act(20, "KILL", "rank 0"), Act(20, "KILL", "launcher"), Act(20, "KILL", "worker 2")
WHOLE = tuple(range(1, STEPS + 1))
LAST = Part((), 0, STEPS)


def schedule(*acts: Act, min_workers: int = 2) -> Schedule:
    return Schedule(1, "launch", "topk", 0, False, min_workers, acts)


def outcome(*parts: Part) -> Outcome:
    return Outcome(parts, "a", "a", WHOLE)


def faults(part: Part, min_workers: int = 2) -> list[str]:
    found = outcome(part, LAST)
    return schedules.judge(schedule(*part.acts, min_workers=min_workers), replace(found, told=("lost",)))


def test_a_schedule_is_the_seeds_whatever_was_picked_before() -> None:
    first = [schedules.pick(1, number) for number in range(1, 61)]
    assert [schedules.pick(1, number) for number in reversed(range(1, 61))] == first[::-1]
    assert [schedules.pick(2, number) for number in range(1, 61)] != first


def test_sixty_schedules_have_all_that_can_be_picked() -> None:
    drawn = [schedules.pick(1, number) for number in range(1, 61)]
    assert {one.program for one in drawn} == set(schedules.PROGRAMS)
    assert {one.scheme for one in drawn} == set(schedules.SCHEMES)
    for program in schedules.PROGRAMS:
        assert {one.data_workers for one in drawn if one.program == program} == {0, 1}
    acts = [act for one in drawn for act in one.acts]
    assert {act.signal for act in acts} == {*schedules.STOPS, schedules.PAUSE, "KILL"}
    assert {act.target for act in acts if act.signal == "KILL"} == {"launcher", "rank 0", "worker 1", "worker 2"}
    assert any(one.evaluator for one in drawn)
    assert any(act.step == EARLY for act in acts)


def test_signals_come_in_the_order_of_their_steps_before_the_end_and_to_processes_that_are_there() -> None:
    for number in range(1, 301):
        one = schedules.pick(7, number)
        steps = [act.step for act in one.acts]
        assert steps == sorted(steps)
        assert steps[-1] < STEPS
        if one.program == "local":
            assert {act.target for act in one.acts} == {"launcher"}
        assert not (one.evaluator and one.program == "session")


@pytest.mark.parametrize(
    ("acts", "min_workers", "fine"),
    [
        ((STOP,), 2, {75}),
        ((INTERRUPT,), 2, {130}),
        ((MASTER,), 2, {3}),
        ((LAUNCHER,), 2, {-9}),
        ((WORKER,), 2, {3, 75}),
        ((WORKER,), 1, set()),
        ((WORKER, WORKER), 1, {3, 75}),
        ((Act(5, schedules.PAUSE, "rank 0"),), 2, set()),
    ],
    ids=str,
)
def test_an_unfinished_part_may_end_with_the_codes_of_the_pages_alone(
    acts: tuple[Act, ...], min_workers: int, fine: set[int]
) -> None:
    assert {
        code for code in (-15, -9, 0, 1, 2, 3, 4, 5, 75, 130, 137, 143) if not faults(Part(acts, code, 20), min_workers)
    } == fine
    assert not faults(Part(acts, 0, STEPS), min_workers)  # the signal came after all steps were done
    assert faults(Part(acts, 0, None), min_workers)  # exit code 0 without a summary


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hung": 1}, "1 hangs"),
        ({"processes": ("77 psnode",)}, "left process: 77 psnode"),
        ({"files": ("pymp-1",)}, "left file: pymp-1"),
        ({"steps": WHOLE[:-1]}, "records"),
        ({"steps": (*WHOLE[:5], *WHOLE[4:])}, "records"),
        ({"model_hash": "b"}, "another model"),
        ({"model_hash": "b", "told": ("lost",)}, "another model"),  # no worker was killed
        ({"evaluated": (5, 60), "evaluator_code": 1}, "the evaluator ended with 1"),
        ({"evaluated": (), "evaluator_code": 0}, "the last evaluation"),
    ],
    ids=str,
)
def test_what_no_page_says_is_a_fault(change: dict[str, object], words: str) -> None:
    stopped = outcome(Part((STOP,), 75, 10), LAST)
    assert schedules.judge(schedule(STOP), stopped) == []
    (found,) = schedules.judge(schedule(STOP), replace(stopped, **change))  # type: ignore[arg-type]
    assert words in found


def test_another_model_after_a_lost_worker_has_to_be_told() -> None:
    found = replace(outcome(Part((WORKER,), 3, 21), LAST), model_hash="b")
    assert schedules.judge(schedule(WORKER), replace(found, told=("begins anew",))) == []
    assert len(schedules.judge(schedule(WORKER), found)) == 1


def test_the_undisturbed_run_is_one_for_all_carriers_and_processes_of_data() -> None:
    one = schedules.without(Schedule(4, "launch", "dgc", 1, True, 1, (STOP,)))
    assert one == schedules.without(Schedule(9, "local", "dgc", 0, False, 2, (MASTER,)))
    assert one != schedules.without(Schedule(9, "session", "dgc", 0, False, 2, (MASTER,)))


def test_an_outcome_that_was_kept_is_judged_again_and_not_run_again(tmp_path: Path) -> None:
    done = replace(outcome(Part((STOP,), 75, 10), LAST), evaluated=(5, STEPS), evaluator_code=0, told=("not saved",))
    file = tmp_path / "out.jsonl"
    file.write_text(json.dumps({"seed": 3, "number": 2, "outcome": asdict(done)}) + "\n" + json.dumps({"seed": 4}) + "\n")
    assert signals.known(file, 3) == [(schedules.pick(3, 2), done)]
    assert signals.References(signals.known(file, 3)).of(schedules.pick(3, 2)) == "a"


def test_processes_are_found_by_their_mark_with_those_that_they_have_started() -> None:
    mark = f"test-{os.getpid()}"
    env = {**os.environ, signals.MARK: mark, "OMPI_COMM_WORLD_RANK": "2"}
    line = [sys.executable, "-c", "import os, sys; os.fork(); print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(line, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert [started.stdout.readline() for _ in range(2)] == [b"\n"] * 2
        found = signals.marked(mark)
        assert len(found) == 2
        assert signals.ranks(mark) == {2: started.pid}
        started.communicate()
    assert signals.marked(f"{mark}-another") == {}
