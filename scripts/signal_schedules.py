"""Schedules of signals for scripts/signals.py, drawn by a seed, and the outcomes that the documentation allows for them."""

from __future__ import annotations

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

STEPS = 60
EARLY = 0  # the step of a signal that is sent as soon as the job's ranks exist
PROGRAMS = ("launch", "local", "session")
SCHEMES = ("dense", "topk", "qsgd", "dgc")
STOPS = ("TERM", "INT", "HUP", "USR1")
PAUSE = "STOP and CONT"
DONE, LOST, ASKED, INTERRUPTED, KILLED = 0, 3, 75, 130, -9  # KILLED: code of a process that itself got KILL


@dataclass(frozen=True)
class Act:
    """A signal to the launcher, rank 0 or a worker. It is sent as soon as `step` is recorded."""

    step: int
    signal: str
    target: str

    @property
    def ends(self) -> bool:
        """True if the signal ends the job, whatever its settings."""
        return self.signal in STOPS or (self.signal == "KILL" and not self.target.startswith("worker"))

    def __str__(self) -> str:
        return f"{self.step or 'start'}: {self.signal} to {self.target}"


@dataclass(frozen=True)
class Schedule:
    """A configuration of a job, and the signals that it gets.

    `min_workers`: 2, or 1 for a job that survives the loss of a worker.
    """

    number: int
    program: str
    scheme: str
    data_workers: int
    evaluator: bool
    min_workers: int
    acts: tuple[Act, ...]

    @property
    def kills_workers(self) -> bool:
        """True if a signal kills a worker, whose residual is then lost."""
        return any(act.signal == "KILL" and act.target.startswith("worker") for act in self.acts)

    def __str__(self) -> str:
        beside = [f"{self.data_workers} data workers"] * bool(self.data_workers) + ["evaluator"] * self.evaluator
        beside += ["--min-workers 1"] * (self.min_workers == 1)
        return ", ".join([self.program, self.scheme, *beside])


@dataclass(frozen=True)
class Part:
    """One start of the job: the signals sent to it, its exit code, and the number of steps in its summary (None: no summary)."""

    acts: tuple[Act, ...]
    code: int
    steps: int | None


@dataclass(frozen=True)
class Outcome:
    """All facts by which the run of a schedule is judged.

    `told`: names of the events of the run. `hung`: the number of parts that had to be killed.
    """

    parts: tuple[Part, ...]
    model_hash: str
    reference: str
    steps: tuple[int, ...]
    told: tuple[str, ...] = ()
    evaluated: tuple[int, ...] | None = None
    evaluator_code: int | None = None
    hung: int = 0
    processes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def equal(self) -> bool:
        """True if the final weights equal those of the undisturbed run."""
        return self.model_hash == self.reference


def pick(seed: int, number: int) -> Schedule:
    """Return schedule `number` of `seed`. It does not depend on the other schedules of this seed."""
    rng = random.Random(f"{seed}/{number}")
    program, scheme = rng.choice(PROGRAMS), rng.choice(SCHEMES)
    data_workers, evaluator = rng.choice((0, 0, 1)), rng.random() < 0.5 and program != "session"
    min_workers = 2 if program == "local" else rng.choice((1, 2))
    steps = sorted(rng.sample(range(2, STEPS - 8), rng.randint(1, 3)))
    acts = [_act(rng, program, step) for step in steps]
    if rng.random() < 0.15:
        acts.insert(0, Act(EARLY, rng.choice((*STOPS, "KILL")), "launcher"))
    return Schedule(number, program, scheme, data_workers, evaluator, min_workers, tuple(acts))


def _act(rng: random.Random, program: str, step: int) -> Act:
    """Return a random act: a signal that stops the job, a pause, or a kill.

    Under --local the target is always the launcher, since the job has no other process.
    """
    kind = rng.choice((*STOPS, PAUSE, "KILL", "KILL", "KILL"))
    targets = ["launcher", "rank 0", "worker 1", "worker 2"]
    if program == "local":
        targets = targets[:1]
    elif kind == PAUSE:
        targets = targets[1:]
    return Act(step, kind, rng.choice(targets))


def allowed(acts: Sequence[Act], min_workers: int) -> set[int]:
    """Return the exit codes that a part may have if it gets the signals `acts` and ends before the last step."""
    codes = set[int]()
    lost = 0
    for act in acts:
        if act.step == EARLY and act.signal in STOPS:  # psnode may not handle signals yet
            codes.add(-getattr(signal, f"SIG{act.signal}"))
        if act.signal in STOPS:
            codes.add(INTERRUPTED if act.signal == "INT" else ASKED)
        elif act.signal == "KILL" and act.target == "launcher":
            codes.add(KILLED)
        elif act.signal == "KILL" and act.target == "rank 0":
            codes.add(LOST)
        elif act.signal == "KILL":
            lost += 1
    if 2 - lost < min_workers:
        codes |= {LOST, ASKED}
    return codes


def judge(schedule: Schedule, outcome: Outcome) -> list[str]:
    """Return the faults of an outcome: all facts that the documentation does not allow."""
    found = [*_codes(schedule, outcome.parts)]
    if outcome.hung:
        found.append(f"{outcome.hung} hangs")
    found += [f"left process: {process}" for process in outcome.processes] + [f"left file: {file}" for file in outcome.files]
    if outcome.steps != tuple(range(1, STEPS + 1)):
        found.append("the records are not those of steps 1 to the last")
    if not outcome.equal and not (schedule.kills_workers and outcome.told):
        found.append(f"another model: {outcome.model_hash[:12]}, undisturbed {outcome.reference[:12]}")
    return found + _evaluations(outcome)


def _codes(schedule: Schedule, parts: Sequence[Part]) -> list[str]:
    found = []
    for number, part in enumerate(parts, 1):
        fine = allowed(part.acts, schedule.min_workers)
        done = part.code == DONE and part.steps == STEPS
        if not done and part.code not in fine:
            steps = "no summary" if part.steps is None else f"{part.steps} steps"
            found.append(f"part {number} ended with {part.code} ({steps}), not one of {sorted(fine | {DONE})}")
    return found


def _evaluations(outcome: Outcome) -> list[str]:
    if outcome.evaluated is None:
        return []
    found = [] if outcome.evaluator_code == DONE else [f"the evaluator ended with {outcome.evaluator_code}"]
    ends = {STEPS} | {part.steps for part in outcome.parts if part.code == INTERRUPTED}  # Ctrl-C also ends the evaluator
    if not ends & set(outcome.evaluated[-1:]):
        found.append(f"the last evaluation is not that of step {STEPS}: {outcome.evaluated[-3:]}")
    return found


def row(schedule: Schedule, outcome: Outcome) -> str:
    """Return the line of the table for a schedule and its outcome."""
    told = ", ".join(sorted(set(outcome.told))) or "-"
    bits = "equal" if outcome.equal else f"another, told ({told})" if schedule.kills_workers and outcome.told else "ANOTHER"
    codes = ", ".join(str(part.code) for part in outcome.parts)
    acts = "; ".join(map(str, [act for part in outcome.parts for act in part.acts])) or "-"
    faults = "; ".join(judge(schedule, outcome)) or "none"
    return f"| {schedule.number} | {schedule} | {acts} | {codes} | {bits} | {faults} |"


def totals(judged: Sequence[tuple[Schedule, Outcome]]) -> dict[str, int]:
    """Return counts over all schedules."""
    done = [outcome for _, outcome in judged]
    return {
        "schedules": len(done),
        "signals": sum(len(part.acts) for outcome in done for part in outcome.parts),
        "starts": sum(len(outcome.parts) for outcome in done),
        "with equal bits": sum(outcome.equal for outcome in done),
        "with another model after a lost worker, told": sum(
            not outcome.equal and schedule.kills_workers and bool(outcome.told) for schedule, outcome in judged
        ),
        "hangs": sum(outcome.hung for outcome in done),
        "processes left": sum(len(outcome.processes) for outcome in done),
        "files left": sum(len(outcome.files) for outcome in done),
        "with faults": sum(bool(judge(schedule, outcome)) for schedule, outcome in judged),
    }


def without(schedule: Schedule) -> Schedule:
    """Return the undisturbed schedule whose final model must equal that of `schedule`.

    The transport of messages may differ between the two, since it does not affect the model.
    """
    program = "session" if schedule.program == "session" else "local"
    return replace(schedule, number=0, program=program, acts=(), data_workers=0, evaluator=False, min_workers=2)
