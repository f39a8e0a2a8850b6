"""Random signals against jobs that are resumed to their end: scripts/signals.py [--schedules N] [--seed S] [--output FILE]

A schedule is a job of two workers and 60 steps with one to four signals. The job is LeNet on synthetic images under `psnode
launch` or `psnode train --local`, or a program with a session under `psnode launch`. It may have data processes and a
concurrent `psnode evaluate`. A signal is sent to the launcher, rank 0 or a worker when metrics.jsonl has a certain step. It is
TERM, INT, HUP, USR1, KILL, or STOP with CONT after 3 seconds. After each end the job is resumed. These are faults: undocumented
exit codes; hangs; a model that differs from the undisturbed run's although no worker was lost; processes that remain (found by
a mark in their environment); and files that remain in the schedule's own TMPDIR or in /dev/shm. The empty folder
torchinductor_USER, which torch makes when it is imported as a whole, is not a fault. The script prints a line per schedule.
With --output it stores each outcome in FILE, and does not run schedules again that are in FILE. The exit code is 0 if no
schedule has a fault. --only NUMBER runs one schedule. --keep FOLDER keeps the directories of schedules that have a fault.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from running import send  # noqa: E402
from signal_processes import MARK, imports, kill, left, marked, ranks, shm_files  # noqa: E402
from signal_schedules import EARLY, PAUSE, STEPS, Act, Outcome, Part, Schedule, judge, pick, row, totals, without  # noqa: E402

HANG_SECONDS = 900.0
PAUSE_SECONDS = 3.0
FLAGS = ["--network", "LeNet", "--dataset", "synthetic", "--synthetic-examples", "256", "--synthetic-shape", "1,28,28"]
FLAGS += ["--batch-size", "8", "--lr", "0.01", "--eval-freq", "5", "--keep-last", "2", "--threads", "1", "--no-tensorboard"]


@dataclass(frozen=True)
class Place:
    """The directory of one schedule, and the mark of its processes."""

    folder: Path
    mark: str

    @property
    def run(self) -> Path:
        """The directory of the run."""
        return self.folder / "run"

    @property
    def temporary(self) -> Path:
        """The folder TMPDIR of all processes of the schedule."""
        return self.folder / "t"

    def environment(self, resume: bool) -> dict[str, str]:
        """Return the environment of all processes of the schedule. `resume`: True to let the job resume its run."""
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary), MARK: self.mark}
        return {**os.environ, **own, **({"PSNODE_RESUME": "true"} if resume else {})}

    def records(self) -> list[dict[str, Any]]:
        """Return the step records of the run that are complete lines."""
        return _json_lines(self.run / "metrics.jsonl")


def command(schedule: Schedule, place: Place) -> list[str]:
    """Return the command line that starts the job."""
    psnode = [sys.executable, "-m", "psnode"]
    launch = [*psnode, "launch", "-n", "2", "--"]
    data, least = str(schedule.data_workers), str(schedule.min_workers)
    if schedule.program == "session":
        return [*launch, str(ROOT / "scripts" / "signal_program.py"), str(place.run), schedule.scheme, str(STEPS), data, least]
    flags = [
        *FLAGS,
        "--max-steps",
        str(STEPS),
        "--scheme",
        schedule.scheme,
        "--data-workers",
        data,
        "--train-dir",
        str(place.run),
    ]
    if schedule.program == "local":
        return [*psnode, "train", "--local", "2", *flags]
    return [*launch, "train", "--min-workers", least, *flags]


class Started:
    """One start of the job. `acts`: the signals that were sent to it."""

    def __init__(self, schedule: Schedule, place: Place, number: int) -> None:
        self._schedule, self._place = schedule, place
        self._records, self._before = place.run / "metrics.jsonl", _inode(place.run / "metrics.jsonl")
        summary = place.run / "summary.json"
        self._summary = _inode(summary)
        self._end = time.monotonic() + HANG_SECONDS
        resume = (place.run / "checkpoints").exists() and any((place.run / "checkpoints").glob("step-*"))
        if not resume:
            shutil.rmtree(place.run, ignore_errors=True)
            self._before = self._summary = 0
        with (place.folder / f"part-{number}.log").open("wb") as log:
            self.process = subprocess.Popen(
                command(schedule, place), env=place.environment(resume), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, cwd=place.folder, start_new_session=True,
            )  # fmt: skip
        self.acts = list[Act]()

    @property
    def running(self) -> bool:
        """True while the process runs and has not reached its time limit."""
        return self.process.poll() is None and time.monotonic() < self._end

    def reached(self, act: Act) -> bool:
        """Return True if it is time for `act`: its step is recorded in this start or, for an early act, the ranks have begun."""
        if act.step == EARLY:
            return bool(ranks(self._place.mark)) if self._schedule.program != "local" else imports(self.process.pid)
        if _inode(self._records) in (0, self._before):
            return False
        return (self._place.records() or [{"step": 0}])[-1]["step"] >= act.step

    def do(self, act: Act) -> bool:
        """Wait for the step of `act`, and send its signal. Return False if the job ended earlier."""
        while self.running and not self.reached(act):
            time.sleep(0.01)
        pid = self._pid(act)
        if not self.running or not pid:
            return False
        self.acts.append(act)
        if act.signal == PAUSE:
            send(pid, signal.SIGSTOP)
            time.sleep(PAUSE_SECONDS)
            send(pid, signal.SIGCONT)
        else:
            send(pid, getattr(signal, f"SIG{act.signal}"))
        return True

    def _pid(self, act: Act) -> int:
        if act.target == "launcher":
            return self.process.pid
        return ranks(self._place.mark).get(int(act.target.split()[-1]), 0)

    def finish(self) -> tuple[Part, bool]:
        """Wait until the launcher and its children have ended, and kill them after the time limit.

        Return the part, and True if processes had to be killed.
        """
        while self.running or (self._processes() and time.monotonic() < self._end):
            time.sleep(0.2)
        hung = bool(left := self._processes())
        kill(left)
        code = self.process.wait()
        summary = self._place.run / "summary.json"
        steps = json.loads(summary.read_text())["steps"] if _inode(summary) not in (0, self._summary) else None
        return Part(tuple(self.acts), code, steps), hung

    def _processes(self) -> list[int]:
        return [pid for pid, env in marked(self._place.mark).items() if "SIGNALS_EVALUATOR" not in env]


class Evaluator:
    """`psnode evaluate`, which runs beside the job from its first start to its end, if the schedule asks for it."""

    def __init__(self, schedule: Schedule, place: Place) -> None:
        self._wanted, self._place = schedule.evaluator, place
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Start the evaluator as soon as config.json exists. Do nothing if it was started before."""
        if self._wanted and self._process is None and (self._place.run / "config.json").exists():
            line = [sys.executable, "-m", "psnode", "evaluate", "--train-dir", str(self._place.run), "--interval", "0.2"]
            with (self._place.folder / "evaluator.log").open("wb") as log:
                env = {**self._place.environment(False), "SIGNALS_EVALUATOR": "1"}
                self._process = subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def end(self) -> tuple[int | None, tuple[int, ...] | None, bool]:
        """Wait for the evaluator to end. Return its exit code, the evaluated steps, and True if it had to be killed."""
        if not self._wanted:
            return None, None, False
        self.begin()
        hung, code = False, None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(HANG_SECONDS)
            if code is None:
                hung = True
                self._process.kill()
                code = self._process.wait()
        return code, tuple(line["step"] for line in _json_lines(self._place.run / "evaluations.jsonl")), hung


def run(schedule: Schedule, folder: Path, reference: str) -> Outcome:
    """Run a schedule: start, disturb and resume the job until it is complete. Return the outcome."""
    place, begin = Place(folder, f"{os.getpid()}-{schedule.number}-{time.time_ns()}"), time.monotonic()
    place.temporary.mkdir(parents=True)
    shm = shm_files()
    evaluator = Evaluator(schedule, place)
    try:
        parts, hung = _parts(schedule, place, evaluator)
        code, evaluated, late = evaluator.end()
        processes, files = left(place.mark, place.temporary, shm)
    finally:
        kill(marked(place.mark))
    summary = place.run / "summary.json"
    return Outcome(
        tuple(parts),
        json.loads(summary.read_text())["model_hash"] if summary.exists() else "",
        reference,
        tuple(record["step"] for record in place.records()),
        tuple(event["event"] for event in _json_lines(place.run / "events.jsonl")),
        evaluated,
        code,
        hung + late,
        tuple(processes),
        tuple(files),
        time.monotonic() - begin,
    )


def _parts(schedule: Schedule, place: Place, evaluator: Evaluator) -> tuple[list[Part], int]:
    """Start the job again and again until it is complete. Return all starts, and the number of hangs.

    Each start but the last is ended by a signal.
    """
    acts, parts, hangs = list(schedule.acts), list[Part](), 0
    while len(parts) < len(schedule.acts) + 2:
        job = Started(schedule, place, len(parts) + 1)
        while acts and job.running:
            evaluator.begin()
            if job.do(acts[0]) and acts.pop(0).ends:
                break
        part, hung = job.finish()
        evaluator.begin()
        parts.append(part)
        hangs += hung
        if part.code == 0 or not part.acts:
            break
    return parts, hangs


def _inode(file: Path) -> int:
    try:
        return file.stat().st_ino
    except OSError:
        return 0


def _json_lines(file: Path) -> list[dict[str, Any]]:
    with contextlib.suppress(OSError):
        return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return []


class References:
    """Hashes of the final models of undisturbed runs.

    Each of these runs is made only once, and hashes in earlier outcomes are reused.
    """

    def __init__(self, judged: Sequence[tuple[Schedule, Outcome]]) -> None:
        self._known = {without(schedule): outcome.reference for schedule, outcome in judged}

    def of(self, schedule: Schedule) -> str:
        """Return the hash of the model with which `schedule` must end. This may run the undisturbed schedule."""
        plain = without(schedule)
        if plain not in self._known:
            with tempfile.TemporaryDirectory(prefix="signals-") as folder:
                outcome = run(plain, Path(folder) / "0", "")
                if judge(plain, outcome)[:-1]:  # the last fault is the missing reference
                    raise SystemExit(f"the undisturbed run of {plain} has faults: {judge(plain, outcome)}")
            self._known[plain] = outcome.model_hash
        return self._known[plain]


def known(output: Path | None, seed: int) -> list[tuple[Schedule, Outcome]]:
    """Return the schedules of this seed in the file `output`, with their outcomes."""
    lines = _json_lines(output) if output else []
    return [(pick(seed, line["number"]), restored(line["outcome"])) for line in lines if line["seed"] == seed]


def restored(outcome: dict[str, Any]) -> Outcome:
    """Return an outcome from its JSON."""
    parts = [Part(tuple(Act(**act) for act in part["acts"]), part["code"], part["steps"]) for part in outcome["parts"]]
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in outcome.items()}
    return Outcome(**{**plain, "parts": tuple(parts)})


def disturbed(number: int, seed: int, references: References, keep: str | None) -> tuple[Schedule, Outcome]:
    """Run schedule `number`, and return it with its outcome.

    Its directory is deleted, unless the outcome has faults and `keep` is given.
    """
    schedule = pick(seed, number)
    reference = references.of(schedule)
    with contextlib.ExitStack() as stack:
        folder = keep or stack.enter_context(tempfile.TemporaryDirectory(prefix="signals-", ignore_cleanup_errors=True))
        place = Path(folder) / str(number)
        outcome = run(schedule, place, reference)
        if not judge(schedule, outcome):
            shutil.rmtree(place)
    return schedule, outcome


def main() -> int:
    """Run all schedules, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--schedules", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of a schedule")
    parser.add_argument("--output", type=Path, help="a file for the outcomes, which is gone on with")
    parser.add_argument("--keep", metavar="FOLDER", help="for the directories of schedules that have a fault")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no schedule after so long")
    args = parser.parse_args()
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
    ):  # under nohup or in a shell's background these signals are ignored, and all children would inherit this
        signal.signal(number, signal.SIG_DFL)
    judged, begin = known(args.output, args.seed), time.monotonic()
    references, there = References(judged), {schedule.number for schedule, _ in judged}
    print("| | job | signals, after step | exit codes | model | faults |\n|---:|---|---|---|---|---|", flush=True)
    for schedule, outcome in judged:
        print(row(schedule, outcome), flush=True)
    for number in range(1, args.schedules + 1) if args.only is None else [args.only]:
        if number in there or time.monotonic() - begin > args.seconds:
            continue
        judged.append(disturbed(number, args.seed, references, args.keep))
        print(row(*judged[-1]), flush=True)
        if args.output:
            with args.output.open("a") as file:
                file.write(json.dumps({"seed": args.seed, "number": number, "outcome": asdict(judged[-1][1])}) + "\n")
    print("\n" + "\n".join(f"* {name}: {count}" for name, count in totals(judged).items()))
    return int(any(judge(*one) for one in judged))


if __name__ == "__main__":
    sys.exit(main())
